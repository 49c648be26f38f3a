"""``msmon watch`` and ``msmon verdicts`` as processes, with a real daemon and windows of a job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from fixtures.live_windows import LiveJob

from msmon.bus.messages import WindowReport
from msmon.commands.main import main
from msmon.commands.watch.options import WATCH_OPTIONS, as_variables
from msmon.commands.watch.unit import system_files, user_files
from msmon.errors import UsageError
from msmon.records.window_frames import frames_of

DEADLINE_S = 60.0


class Ranks:
    """Agents that send the windows of a job when the test says so."""

    def __init__(self, job: LiveJob, agent: Callable) -> None:
        self._windows = list(job.windows(600))
        self._sent: dict[int, int] = {}
        self._agents = {}
        for rank in range(job.ranks):
            process = job.process(rank)
            self._agents[rank] = one = agent(
                process.pid,
                host=process.host,
                rank=rank,
                job_id=process.job,
                world_size=process.world_size,
                device=process.device,
            )
            one.open_session(f"{rank:032x}")

    def send_until(self, s: float) -> None:
        """Send all windows that have ended by then, seconds from the begin of the job."""
        while self._windows and self._windows[0].window.end_ns <= BASE_NS + s * 1e9:
            seen = self._windows.pop(0)
            rank = seen.process.rank
            self._sent[rank] = self._sent.get(rank, 1) + 1
            report = WindowReport(f"{rank:032x}", self._sent[rank], **seen.window.header_fields())
            self._agents[rank].send(report, frames_of(seen.window))


BASE_NS = 1_796_000_000_000_000_000


@pytest.fixture
def watching(daemon) -> Iterator[Callable[..., subprocess.Popen]]:
    """Start ``msmon watch``; it reads and writes as a service does."""
    running: list[subprocess.Popen] = []

    def start(*arguments: str, **environ: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "msmon.commands.main", "watch", *arguments],
            env={**daemon.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def told(process: subprocess.Popen, change: str) -> dict:
    """Return the next object with this change; others are passed over."""
    deadline = threading.Timer(DEADLINE_S, process.kill)
    deadline.start()
    passed_over = []
    try:
        for line in process.stdout:
            fields = json.loads(line)
            if fields["change"] == change:
                return fields
            passed_over.append(line)
    finally:
        deadline.cancel()
    raise AssertionError(f"no {change!r} in {passed_over}; {process.stderr.read()}")


def ended(process: subprocess.Popen, number: int = signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(number)
    _, text = process.communicate(timeout=DEADLINE_S)
    return process.returncode, text


def test_a_slow_rank_is_told_from_its_begin_to_its_end(
    daemon, agent, watching, tmp_path, wait_for
) -> None:
    heard = tmp_path / "heard"
    watch = watching("--json", MSMON_WATCH_ON_VERDICT=f"cat >> {heard}; echo >> {heard}")
    assert "can't be asked" in told(watch, "note")["text"]
    daemon.start()
    assert told(watch, "note")["text"] == "can be asked again"
    ranks = Ranks(LiveJob(slow={2: 1.5}, slow_from_s=150), agent)
    ranks.send_until(300)
    begun = told(watch, "begun")
    assert (begun["job"], begun["kind"], begun["ranks"]) == ("train", "slow-device", [2])
    wait_for(lambda: heard.exists() and heard.read_text().endswith("}\n"), "the command")
    daemon.kill()
    assert "can't be asked" in told(watch, "note")["text"]
    code, text = ended(watch)
    assert (code, "Traceback" in text) == (0, False)
    assert [json.loads(line)["change"] for line in heard.read_text().splitlines()] == ["begun"]


def test_what_holds_at_the_start_is_present_and_listed(daemon, agent, watching) -> None:
    daemon.start()
    ranks = Ranks(LiveJob(slow={2: 1.5}, slow_from_s=100, slow_until_s=300), agent)
    ranks.send_until(250)
    watch = watching("--json")
    present = told(watch, "present")
    assert (present["ranks"], present["alerts"]) == ([2], True)
    ranks.send_until(600)
    assert told(watch, "cleared")["until_ns"] is not None
    assert ended(watch, signal.SIGINT)[0] == 0
    listed = subprocess.run(
        [sys.executable, "-m", "msmon.commands.main", "verdicts", "--json", "--job", "train"],
        env=daemon.environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert listed.returncode == 0, listed.stderr
    answer = json.loads(listed.stdout)
    assert [(one["present"], one["ranks"]) for one in answer["verdicts"]] == [(False, [2])]
    assert (answer["jobs"][0]["job"], answer["daemons_not_asked"]) == ("train", {})


def test_it_ends_with_the_daemon_that_started_it(daemon, watching) -> None:
    daemon.start()
    watch = watching(MSMON_WATCH_PARENT=str(os.getpid() + 1))
    assert watch.wait(DEADLINE_S) == 0


def test_verdicts_without_a_daemon_is_an_error(daemon, monkeypatch, capsys) -> None:
    for name, value in daemon.environ.items():
        monkeypatch.setenv(name, value)
    assert main(["verdicts"]) == 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--webhook", "file:///etc/passwd"),
        ("--webhook-secret-file", "x"),
        ("--log-file", "/data"),
        ("--trace", "--log-file", "data"),
        ("--trace", "--trace-every", "0"),
        ("--print",),
    ],
)
def test_wrong_options_are_refused(arguments, capsys) -> None:
    assert main(["watch", *arguments]) == 2
    assert arguments[-2 if len(arguments) > 1 else 0].split("=")[0] in capsys.readouterr().err


def test_help_names_every_option(capsys) -> None:
    assert main(["watch", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(option.flag in out for option in WATCH_OPTIONS)


def test_a_table_becomes_the_environment_of_the_child() -> None:
    table = {"trace": True, "minor": False, "trace-every": 45, "on-verdict": "cat"}
    assert as_variables(table, "daemon.toml") == {
        "MSMON_WATCH_TRACE": "true",
        "MSMON_WATCH_TRACE_EVERY_MIN": "45.0",
        "MSMON_WATCH_ON_VERDICT": "cat",
    }
    for wrong in ({"tracing": True}, {"trace": "yes"}, {"trace-every": 45}, {"webhook": 3}):
        with pytest.raises(UsageError, match=r"daemon.toml: \[watch\]: "):
            as_variables(wrong, "daemon.toml")


def test_the_units_run_the_watch_and_keep_its_options_from_others() -> None:
    unit, _, options = system_files("/opt/bin/python")
    assert "ExecStart=/opt/bin/python -m msmon.commands.main watch\n" in unit.text
    assert (options.mode, options.keep) == (0o600, True)
    assert "{" not in unit.text
    user, _ = user_files({"XDG_CONFIG_HOME": "/home/me/.config"})
    assert "\nUser=" not in user.text
