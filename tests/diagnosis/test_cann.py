"""CANN, its library in a throw-away process, and LD_PRELOAD."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from msmon.diagnosis import cann
from msmon.diagnosis.finding import Level
from msmon.diagnosis.preload import preload


@pytest.fixture
def root(cann_root: Path, tmp_path: Path) -> Path:
    """A CANN of our own, version 8.3."""
    root = tmp_path / "cann"
    shutil.copytree(cann_root, root)
    (root / "x86_64-linux").mkdir()
    info = root / "x86_64-linux" / "ascend_toolkit_install.info"
    info.write_text("package_name=Ascend-cann-toolkit\nversion=8.3.RC1\narch=x86_64\n")
    return root


@pytest.fixture
def installed(place, root: Path) -> Path:
    place.environ["ASCEND_HOME_PATH"] = str(root)
    return root


def test_without_cann_nothing_fails(place, find) -> None:
    place.environ["ASCEND_HOME_PATH"] = "/nowhere"
    assert find(cann.cann).level is Level.WARN
    assert find(cann.libmspti_loads).level is Level.WARN
    assert find(preload).level is Level.OK


def test_version_and_root_are_shown(find, installed: Path) -> None:
    found = find(cann.cann)
    assert found.level is Level.OK
    assert f"8.3.RC1 in {installed}" in found.text


def test_the_library_loads_in_a_process_of_its_own(find, installed: Path) -> None:
    found = find(cann.libmspti_loads)
    assert found.level is Level.OK, found
    assert "loads and subscribes" in found.text


def test_a_missing_library_of_cann_is_said(find, installed: Path) -> None:
    (installed / "lib64" / "libprofapi.so").unlink()
    found = find(cann.libmspti_loads)
    assert found.level is Level.FAIL
    assert "libprofapi.so" in found.text


def test_an_abort_ends_only_the_throw_away_process(
    place, find, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as with a library that is there and does not work: nothing was missing beforehand
    place.environ["MSPTI_DOUBLE_NEEDS_CANN"] = "1"
    (installed / "lib64" / "libprofapi.so").unlink()
    code = f"import ctypes; ctypes.CDLL({str(installed / 'lib64' / 'libmspti.so')!r})"
    monkeypatch.setattr(cann, "PROBE", ("-c", code))
    found = find(cann.libmspti_loads)
    assert found.level is Level.FAIL
    assert "SIGABRT" in found.text


def test_a_library_that_hangs_is_given_up(
    place, find, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cann, "PROBE", ("-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(cann, "PROBE_LIMIT_S", 0.2)
    assert "took more than 0.2 s" in find(cann.libmspti_loads).text


def test_old_cann_needs_the_preload(find, installed: Path) -> None:
    found = find(preload)
    assert found.level is Level.WARN
    assert f"export LD_PRELOAD={installed}/lib64/libmspti.so" in found.remedy


def test_new_cann_needs_it_for_four_kinds_only(find, installed: Path) -> None:
    info = installed / "x86_64-linux" / "ascend_toolkit_install.info"
    info.write_text("version=9.0.0\n")
    found = find(preload)
    assert found.level is Level.OK
    assert "MemCpy" in found.text


@pytest.mark.parametrize("separator", [":", " "])
def test_a_preload_among_others_is_found(place, find, installed: Path, separator: str) -> None:
    ours = installed / "lib64" / "libmspti.so"
    other = installed / "lib64" / "libhccl.so"
    place.environ["LD_PRELOAD"] = f"{other}{separator}{ours}"
    assert find(preload).text == f"contains {ours}"


def test_another_preload_is_not_enough(place, find, installed: Path) -> None:
    place.environ["LD_PRELOAD"] = str(installed / "lib64" / "libhccl.so")
    found = find(preload)
    assert found.level is Level.WARN
    assert "has only" in found.text


def test_a_preload_of_a_missing_file_fails(place, find, installed: Path) -> None:
    place.environ["LD_PRELOAD"] = "/nowhere/libmspti.so"
    found = find(preload)
    assert found.level is Level.FAIL
    assert "/nowhere/libmspti.so, and there is no such file" in found.text


def test_simulation_needs_nothing(place, find) -> None:
    place.environ["MSMON_SIMULATE"] = "1"
    assert find(cann.cann).level is Level.OK
    assert find(cann.libmspti_loads).level is Level.OK
    assert find(preload).level is Level.OK
