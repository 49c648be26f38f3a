"""How much is kept for one owner stays bounded, also while sessions are open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from msmon.daemon.outputs import stored_progress
from msmon.daemon.outputs.stored_progress import ProgressDirectory
from msmon.errors import SinkError


def kept_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


@pytest.fixture
def progress(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_progress, "MAX_OWNER_BYTES", 1000)
    return ProgressDirectory(tmp_path / "owner", "jsonl")


def test_entries_that_grow_later_stay_within_the_bound(progress, tmp_path):
    sessions = [progress.of(f"s{number}") for number in range(3)]
    for session in sessions:
        session.keep(b"x")
    for session in sessions[:2]:
        session.keep(b"x" * 400)
    with pytest.raises(SinkError, match="more than can be kept"):
        sessions[2].keep(b"x" * 400)
    assert kept_bytes(tmp_path / "owner") == 801
    sessions[0].keep(b"x" * 401)


def test_the_oldest_entry_of_a_session_that_is_not_open_makes_room(progress, tmp_path):
    earlier = ProgressDirectory(tmp_path / "owner", "sqlite")
    for number in range(2):
        earlier.of(f"s{number}").keep(b"x" * 400)
    oldest, newer = (tmp_path / "owner").iterdir()
    os.utime(oldest, (1, 1))
    progress.of("s2").keep(b"x" * 400)
    assert not oldest.exists()
    assert newer.exists()
