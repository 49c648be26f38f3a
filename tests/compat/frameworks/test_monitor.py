"""Scripts written for msMonitor's Monitor run unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import IPCMonitor
import msmonitor
import openpyxl
import pytest
from msmonitor import ActivityKind

from msmon.compat.frameworks.monitor import SingletonMonitor


@pytest.fixture
def fresh() -> SingletonMonitor:
    return SingletonMonitor()


def test_both_packages_hand_out_one_monitor() -> None:
    assert msmonitor.Monitor is IPCMonitor.Monitor
    assert msmonitor.Monitor() is msmonitor.Monitor
    assert str(ActivityKind.Kernel) == "ActivityKind.Kernel"
    assert (ActivityKind.RuntimeAPI.name, ActivityKind.RuntimeAPI.value) == ("RuntimeAPI", 12)


def test_a_script_of_the_documentation(
    library: Any, fresh: SingletonMonitor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor = fresh()
    assert monitor.start([ActivityKind.Kernel, ActivityKind.API]) is None
    library.record(ActivityKind.Kernel, 4)
    assert monitor.stop() is None
    result = monitor.get_result()
    for kernel in result[ActivityKind.Kernel]:
        assert kernel.endNs >= kernel.startNs
        assert len(kernel.to_tuple()) == 7
    assert len(result[ActivityKind.API]) == 0
    assert monitor.save(str(tmp_path / "result")) is None
    assert capsys.readouterr().out == ""
    book = openpyxl.load_workbook(tmp_path / "result.xlsx", read_only=True)
    assert sorted(book.sheetnames) == ["API", "Kernel"]
    book.close()
    monitor.save(str(tmp_path / "result.xlsx"))
    assert "overwritten" in capsys.readouterr().out


@pytest.mark.parametrize("kinds", [[], (ActivityKind.Kernel,), [2], "Kernel", None])
def test_wrong_kinds_are_printed_not_raised(
    fresh: SingletonMonitor, kinds: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh.start(kinds)
    assert capsys.readouterr().out == "[ERROR] Invalid activity kind list\n"


def test_nothing_raises_before_a_start(
    fresh: SingletonMonitor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh.stop()
    assert fresh.get_result() == {}
    assert capsys.readouterr().out == "[WARNING] No valid activity kind\n"
    fresh.save(str(tmp_path / "none.xlsx"))
    fresh.save("")
    assert "[ERROR] Invalid file path" in capsys.readouterr().out
    assert not (tmp_path / "none.xlsx").exists()


def test_failures_are_printed(
    library: Any, fresh: SingletonMonitor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh.start([ActivityKind.Kernel])
    fresh.start([ActivityKind.API])
    other = SingletonMonitor()
    other.start([ActivityKind.Kernel])
    fresh.stop()
    (tmp_path / "folder.xlsx").mkdir()
    fresh.save(str(tmp_path / "folder.xlsx"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[WARNING] Monitor is already started"
    assert any("Failed to start monitor" in line for line in lines)
    assert any("Failed to save file" in line for line in lines)
