"""The agent's log: where, how much, how often."""

from __future__ import annotations

from msmon.agent import log
from msmon.agent.log import AgentLog


def test_without_the_variable_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    AgentLog.from_environment({}).write("a line")
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_made_at_the_first_line(tmp_path):
    made = AgentLog.from_environment({"MSMONITOR_LOG_PATH": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
    made.write("a line\nand another")
    assert made.path.parent == tmp_path / "msmonitor_log"
    assert made.path.read_text().endswith("a line / and another\n")


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    AgentLog(blocked / "log").write("a line")
    assert blocked.read_text() == ""


def test_the_rate_is_limited_and_what_was_left_out_is_counted(tmp_path, monkeypatch):
    made = AgentLog(tmp_path)
    now_s = 1000.0
    monkeypatch.setattr(log.time, "monotonic", lambda: now_s)
    for _ in range(log.LINES_PER_PERIOD + 5):
        made.write("again")
    assert len(made.path.read_text().splitlines()) == log.LINES_PER_PERIOD
    now_s += log.PERIOD_S + 1
    made.write("later")
    assert made.path.read_text().endswith("later (5 lines left out)\n")


def test_the_file_stays_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "MAX_FILE_BYTES", 200)
    monkeypatch.setattr(log, "LINES_PER_PERIOD", 10_000)
    made = AgentLog(tmp_path)
    for number in range(100):
        made.write(f"line {number}")
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert made.path.read_text().endswith("line 99\n")
    assert max(sizes) < 300
