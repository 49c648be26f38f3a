"""Shared memory of the frameworks: what is stale, and what --fix removes."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from msmon.diagnosis.finding import Level
from msmon.diagnosis.shared_memory import stale_segments


@pytest.fixture
def segment(place) -> Path:
    path = place.shared_memory / "DynamicProfileNpuShm2026113003"
    path.write_bytes(bytes(4096))
    return path


def test_nothing_there(find) -> None:
    assert find(stale_segments).level is Level.OK


def test_a_segment_that_nobody_maps_is_stale_and_shown_with_owner_and_age(find, segment) -> None:
    os.utime(segment, (segment.stat().st_mtime - 600,) * 2)
    found = find(stale_segments)
    assert found.level is Level.WARN
    assert "doctor --fix" in found.remedy
    assert "10 min old, used by nobody" in found.details[0]
    assert segment.exists()


@pytest.mark.parametrize("name", ["DynamicProfileNpuShm2026113003", "DynamicProfileShm2026113003"])
def test_fix_removes_it(place, find, name: str) -> None:
    (place.shared_memory / name).touch()
    found = find(stale_segments, fix=True)
    assert found.level is Level.OK
    assert name in found.details[0]
    assert not (place.shared_memory / name).exists()


def test_fix_leaves_what_a_process_uses(place, find, segment) -> None:
    place.add_process(600, ["python"], maps=(str(segment),), parent=599)
    assert find(stale_segments, fix=True).level is Level.OK
    assert segment.exists()


def test_an_orphaned_polling_child_is_named(place, find, segment) -> None:
    place.add_process(600, ["python"], maps=(str(segment),), parent=1)
    found = find(stale_segments, fix=True)
    assert found.level is Level.WARN
    assert "kill 600" in found.remedy
    assert segment.exists()


def test_fix_leaves_what_is_older_than_the_container(find, segment) -> None:
    os.utime(segment, (1, 1))
    found = find(stale_segments, fix=True)
    assert "can't all be seen from here" in found.details[0]
    assert segment.exists()


def test_fix_leaves_links_and_other_names(place, find, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.touch()
    (place.shared_memory / "DynamicProfileShmX").symlink_to(target)
    (place.shared_memory / "other").touch()
    find(stale_segments, fix=True)
    assert target.exists()
    assert (place.shared_memory / "other").exists()


def test_a_live_process_is_seen_in_the_real_proc(find, segment, monkeypatch) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", "/proc")
    code = (
        f"import mmap; f = open({str(segment)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0)\n"
        "print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        found = find(stale_segments, fix=True)
        assert f"used by pid {child.pid}" in found.details[0]
        assert segment.exists()
        child.stdin.close()
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        find(stale_segments, fix=True)
        assert segment.exists()
    find(stale_segments, fix=True)
    assert not segment.exists()
