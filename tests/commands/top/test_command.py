"""``msmon top`` with real daemons: once, and on a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from fixtures.live_windows import BASE_NS, LiveJob
from fixtures.screen import LEFT, Screen

from msmon.bus.messages import Answer, Status, WindowReport
from msmon.errors import UsageError
from msmon.records.window_frames import frames_of
from msmon.sessions import MonitorSettings

RANKS = 3
TOP = (sys.executable, "-W", "error", "-m", "msmon.commands.main", "top")


def send_windows(agents, job: LiveJob, duration_s: float) -> None:
    """Send what a job has recorded until now, as if it had begun ``duration_s`` ago."""
    moved_ns = time.time_ns() - BASE_NS - round(duration_s * 1e9)
    sent = dict.fromkeys(range(RANKS), 1)
    for seen in job.windows(duration_s):
        rank = seen.process.rank
        sent[rank] += 1
        window = replace(
            seen.window,
            start_ns=seen.window.start_ns + moved_ns,
            end_ns=seen.window.end_ns + moved_ns,
        )
        report = WindowReport(str(rank) * 32, sent[rank], **window.header_fields())
        agents[rank].send(report, frames_of(window))


@pytest.fixture
def ranks(daemon, agent):
    """Three ranks of a job with the daemon, monitored, of which the last one is slow."""
    daemon.start()
    settings = MonitorSettings(report_interval_s=10.0)
    agents = []
    for rank in range(RANKS):
        one = agent(1000 + rank, rank=rank, job_id="train", world_size=RANKS, device=rank)
        session = str(rank) * 32
        one.status = Status("monitoring", session_id=session, settings=settings)
        one.open_session(session)
        agents.append(one)
    send_windows(agents, LiveJob(ranks=RANKS, slow={2: 1.5}), 300)
    return agents


@pytest.fixture
def screen(daemon):
    opened = []

    def open_screen(*arguments: str, width: int = 80, height: int = 24) -> Screen:
        opened.append(Screen([*TOP, *arguments], daemon.environ, width, height))
        return opened[-1]

    yield open_screen
    for one in opened:
        one.close()


def once(daemon, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*TOP, "--once", *arguments], env=daemon.environ, capture_output=True, text=True, timeout=60
    )


def test_once_prints_verdict_ranks_and_operators(daemon, ranks):
    answer = once(daemon)
    assert answer.returncode == 0, answer.stderr
    assert "\x1b" not in answer.stdout
    assert "slow device: rank 2 (node, NPU 2) needs 1.50x its peers' time" in answer.stdout
    for part in (
        "train: groups",
        "train: ranks",
        "train: operators of rank 2",
        "MatMul",
        "group_1",
    ):
        assert part in answer.stdout


def test_once_as_json(daemon, ranks):
    answer = json.loads(once(daemon, "--json", "--operators", "1").stdout)
    assert [one["ranks"] for one in answer["verdicts"]] == [[2]]
    assert answer["problems"] == []
    (job,) = answer["jobs"]
    assert (job["name"], job["ranks"][2]["rank"]) == ("train", 2)
    (operator,) = job["ranks"][2]["operators"]
    assert operator["name"] == "MatMul"
    assert 1.45 < operator["peers"] < 1.55
    assert job["ranks"][0]["step_ns"] == 500_000_000


def test_once_says_what_to_do_where_nothing_is_monitored(daemon, agent):
    daemon.start()
    assert "msmon run" in once(daemon).stdout
    agent(11, rank=0)
    told = once(daemon).stdout
    assert "not monitored" in told
    assert "npu-monitor start" in told


def test_without_a_daemon(daemon):
    answer = once(daemon, "--json")
    assert answer.returncode == 1
    assert json.loads(answer.stdout)["error"] == "DaemonUnreachable"


def test_looking_around(ranks, screen):
    one = screen()
    one.wait_for("slow device: rank 2")
    assert not one.echoes
    one.press("G\r")
    one.wait_for("> rank 2")
    one.wait_for("MatMul")
    one.press("\r")
    one.wait_for("MatMul")
    one.wait_for("COUNT")
    one.press("\x1b")
    one.wait_for("OPERATOR")
    one.press("?")
    one.wait_for("turn the order round")
    one.resize(100, 30)
    one.wait_for("turn the order round")
    one.press("xq")
    assert one.wait() == 0
    assert LEFT in one.written


def test_a_trace_of_the_marked_ranks(ranks, screen):
    asked = []
    for one in ranks:
        one.answers["trace.start"] = lambda command: (
            asked.append(command) or Answer(True, "steps 10 to 11", step=9)
        )
    on = screen("--log-file", "/tmp/traces-of-top")
    on.wait_for("slow device: rank 2")
    on.press("mmT")
    on.wait_for("Trace ranks 0-1 for 2 steps into /tmp/traces-of-top?")
    on.press("y")
    on.wait_for("rank 0 node:1000")
    assert len(asked) == 2
    assert all(command.fields["iterations"] == 2 for command in asked)


def test_a_daemon_that_goes_away_and_comes_back(daemon, ranks, screen):
    one = screen()
    one.wait_for("slow device: rank 2")
    daemon.kill()
    one.wait_for("no daemon")
    assert "slow device: rank 2" in one.text  # what was seen stays
    daemon.start()
    one.wait_for("1 daemon ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(daemon, screen, number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("these tests were started to ignore the signal, and so is the command")
    daemon.start()
    one = screen()
    one.wait_for("No process is registered")
    os.kill(one.pid, number)
    assert one.wait() == (130 if number == signal.SIGINT else 128 + number)
    assert LEFT in one.written
    assert one.echoes


def test_ctrl_z_gives_the_terminal_back_until_the_command_goes_on(daemon):
    daemon.start()
    shell = Screen(["bash", "--norc", "--noprofile", "-i"], {**daemon.environ, "PS1": "$ "})
    try:
        shell.press(" ".join(TOP) + "\n")
        shell.wait_for("No process is registered")
        shell.press("\x1a")
        shell.wait_written("Stopped")
        assert LEFT in shell.written
        shell.press("fg\n")
        before = len(shell.written)
        shell.wait_written("No process is registered", before)
        before = len(shell.written)
        shell.press("q")
        shell.wait_written(LEFT, before)
        shell.press("exit\n")
        assert shell.wait() == 0
    finally:
        shell.close()


def test_a_full_screen_needs_a_terminal(run):
    code, _, err = run("top")
    assert code == UsageError.exit_code
    assert "--once" in err
    assert run("top", "--json")[0] == UsageError.exit_code
