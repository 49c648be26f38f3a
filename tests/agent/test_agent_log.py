"""The agent's log: where, how much, how often."""

from __future__ import annotations

import logging
import os

import pytest

from msmon import logs
from msmon.agent import agent_log as log
from msmon.agent.agent_log import AgentLog


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
    monkeypatch.setattr(logs.time, "monotonic", lambda: now_s)
    for _ in range(log.LINES_PER_PERIOD + 5):
        made.write("again")
    assert len(made.path.read_text().splitlines()) == log.LINES_PER_PERIOD
    now_s += log.PERIOD_S + 1
    made.write("later")
    assert made.path.read_text().endswith("later (5 more left out)\n")


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


FOREIGN = {
    "a pipe": os.mkfifo,
    "a link": lambda path: path.symlink_to(path.with_name("elsewhere")),
    "a hard link": lambda path: (
        path.hardlink_to(path.with_name("elsewhere"))
        if hasattr(path, "hardlink_to")
        else os.link(path.with_name("elsewhere"), path)
    ),
    "a device": lambda path: path.symlink_to("/dev/full"),
    "a directory": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_others_have_put_at_its_name_neither_hangs_nor_gets_a_line(tmp_path, what):
    made = AgentLog(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("untouched")
    FOREIGN[what](made.path)
    made.write("a line")
    assert elsewhere.read_text() == "untouched"


def test_a_directory_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / log.DIRECTORY).symlink_to(tmp_path / "elsewhere")
    AgentLog.from_environment({"MSMONITOR_LOG_PATH": str(tmp_path)}).write("a line")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_file_of_another_user_gets_no_line(tmp_path):
    made = AgentLog(tmp_path)
    made.path.write_text("")
    os.chown(made.path, 65534, 65534)
    made.write("a line")
    assert made.path.read_text() == ""


def test_what_the_job_does_to_its_loggers_does_not_reach_it(tmp_path, monkeypatch):
    made = AgentLog(tmp_path)
    logging.disable(logging.CRITICAL)
    try:
        made.write("a line")
    finally:
        logging.disable(logging.NOTSET)
    assert made.path.read_text().endswith("a line\n")
