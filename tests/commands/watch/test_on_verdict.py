"""The command that gets a verdict, as a real process."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from msmon.commands.watch.on_verdict import CommandRunner


@pytest.fixture(autouse=True)
def _real_stderr(capfd) -> None:
    """A command writes to a file descriptor."""


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def number_in(path: Path) -> int:
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else 0


def test_the_document_comes_on_standard_input(tmp_path) -> None:
    document = json.dumps({"text": "rank 3; $(touch x) `id`", "ranks": [3]}).encode()
    runner = CommandRunner(f"cat > {tmp_path}/got", 20)
    assert runner.send(document) == ""
    assert (tmp_path / "got").read_bytes() == document
    assert list(tmp_path.iterdir()) == [tmp_path / "got"]


def test_a_command_that_reads_nothing_and_one_that_fails(capfd) -> None:
    assert CommandRunner("true", 20).send(b"x" * 1_000_000) == ""
    failing = CommandRunner("echo said; exit 3", 20)
    assert failing.send(b"{}") == "the command ended with exit code 3"
    assert CommandRunner("kill -9 $$", 20).send(b"{}") == "the command was ended by signal 9"
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "said\n")


def test_after_its_time_the_command_is_killed_with_all_that_it_started(tmp_path, wait_for) -> None:
    stubborn = f"trap '' TERM; sleep 600 & echo $! > {tmp_path}/pid; wait; wait; sleep 600"
    begun_s = time.monotonic()
    told = CommandRunner(f"trap '' TERM; {stubborn}", 1.0).send(b"{}")
    assert told == "the command was killed after 1 s"
    assert time.monotonic() - begun_s < 20
    child = number_in(tmp_path / "pid")
    wait_for(lambda: is_gone(child), "the end of what the command started")


def test_it_leads_a_group_of_its_own(tmp_path) -> None:
    CommandRunner(f"ps -o pgid= -p $$ > {tmp_path}/group; echo $$ > {tmp_path}/pid", 20).send(b"")
    group = int((tmp_path / "group").read_text() or number_in(tmp_path / "pid"))
    assert group == number_in(tmp_path / "pid") != os.getpgrp()


def test_the_end_of_the_watching_kills_it(tmp_path, wait_for) -> None:
    runner, told = CommandRunner(f"echo $$ > {tmp_path}/pid; exec sleep 600", 600), []
    thread = threading.Thread(target=lambda: told.append(runner.send(b"{}")))
    thread.start()
    pid = wait_for(lambda: number_in(tmp_path / "pid"), "the command")
    runner.abort()
    thread.join(20)
    assert told == ["the command was killed: the watching ends"]
    assert is_gone(pid)
    assert runner.send(b"{}") == ""
