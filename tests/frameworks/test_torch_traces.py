"""nputrace of real PyTorch ranks (CPU, gloo, torchrun), end to end."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(  # find_spec, because an import takes seconds in each process
        importlib.util.find_spec("torch") is None,
        reason="PyTorch is not installed (scripts/test --full has it)",
    ),
    pytest.mark.xdist_group("torch_traces"),
]

TRAINING = Path(__file__).parent / "training.py"
DEADLINE_S = 60.0
STEPS_AHEAD = 250
"""More steps than the job makes while a command reaches it, also on a busy machine."""


class Training:
    """A daemon and a job of two ranks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("MSMON", "KINETO"))},
            "MSMON_RUNTIME_DIR": str(directory / "run"),
            "MSMON_KEYS_DIR": str(directory / "keys"),
            "MSMON_SIMULATE": "rate=2000",
        }
        self.daemon = self._start("-m", "msmon.commands.daemon", "--heartbeat-s", "0.2")
        self._end = directory / "end"
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        self.job = self._start(*torchrun, str(TRAINING), str(self._end))

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / "output").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *arguments],
                env=self.environ,
                cwd=self.directory,
                stdout=output,
                stderr=output,
            )

    def msmon(self, *arguments: str) -> tuple[int, str]:
        """Run a command, and return its exit code and its output."""
        done = subprocess.run(
            [sys.executable, "-m", "msmon.commands.main", *arguments],
            env=self.environ,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.returncode, done.stdout.decode()

    def rows(self) -> list[dict]:
        code, text = self.msmon("status", "--json")
        return json.loads(text.splitlines()[0])["rows"] if code == 0 else []

    def await_steps(self, steps: int = 1) -> int:
        """Wait until both ranks make steps, and return the number of the current one."""
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            rows = self.rows()
            if len(rows) == 2 and all(row["step"] >= steps for row in rows):
                return max(row["step"] for row in rows)
            time.sleep(0.2)
        raise AssertionError((self.directory / "output").read_text())

    def await_state(self, state: str) -> None:
        """Wait until both ranks are in a state."""
        deadline_s = time.monotonic() + DEADLINE_S
        while {row["state"] for row in self.rows()} != {state}:
            assert time.monotonic() < deadline_s, (self.directory / "output").read_text()
            time.sleep(0.1)

    def trace(self, *options: str, expected: int = 0) -> list[dict]:
        """Take a trace, wait for its end, and return the rows of the ranks."""
        arguments = ("nputrace", "--iterations", "2", "--log-file", "out", "--wait", "--json")
        code, text = self.msmon(*arguments, *options)
        assert code == expected, text + (self.directory / "output").read_text()
        return json.loads(text.splitlines()[0])["rows"]

    def end(self) -> int:
        """Let the training end, and return the exit code of torchrun."""
        self._end.touch()
        return self.job.wait(DEADLINE_S)

    def close(self) -> None:
        for process in (self.job, self.daemon):
            if process.poll() is None:
                process.terminate()
                process.wait(DEADLINE_S)


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> Iterator[Training]:
    started = Training(tmp_path_factory.mktemp("t"))
    try:
        started.await_steps()
        yield started
    finally:
        started.close()


def annotations(path: str, start: str) -> dict[int, tuple[float, float]]:
    """Return number → (begin, end) of the annotations "<start><number>" in a Chrome trace."""
    events = json.loads(Path(path).read_text())["traceEvents"]
    return {
        int(event["name"].removeprefix(start)): (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("ph") == "X" and event["name"].startswith(start)
    }


def assert_traces_of(rows: list[dict], first: int) -> None:
    assert [row["rank"] for row in rows] == [0, 1]
    for row in rows:
        assert row["trace"]["captured"] == [first, first + 1]
        (path,) = row["files"]
        steps = annotations(path, "ProfilerStep#")
        iterations = annotations(path, "iteration ")
        assert sorted(steps) == [first, first + 1]
        # a step lasts from one update to the next: the loop's own iteration begins inside it
        for number in steps:
            begin, end = steps[number]
            assert begin < iterations[number][0] < end


def test_exactly_the_steps_asked_for_on_every_rank_and_again(training):
    for _ in range(2):
        first = training.await_steps() + STEPS_AHEAD
        assert_traces_of(training.trace("--start-step", str(first)), first)


def test_next_step_is_the_same_on_both_ranks(training):
    rows = training.trace("--start-step", "-1")
    assert_traces_of(rows, rows[0]["trace"]["start_step"])


def test_stacks_shapes_and_memory_written_in_the_background(training):
    options = ("--with-stack", "--record-shapes", "--profile-memory", "--analyse", "--async-mode")
    rows = training.trace(*options, "--l2-cache")
    for row in rows:
        assert row["trace"]["left_out"] == ["--l2-cache"]
        text = Path(row["files"][0]).read_text()
        assert '"Input Dims"' in text
        assert "[memory]" in text
        assert "training.py" in text


def test_a_step_that_has_passed_is_refused_with_the_current_one(training):
    current = training.await_steps(5)
    arguments = ("nputrace", "--iterations", "1", "--start-step", "3", "--log-file", "out")
    code, text = training.msmon(*arguments)
    assert code == 1
    assert "step 3 has passed: the current step is" in text
    assert current > 3


def test_monitoring_refuses_a_trace_unless_it_may_be_paused(training):
    code, text = training.msmon("npu-monitor", "start", "--kind", "Kernel", "--log-file", "mon")
    assert code == 0, text
    code, text = training.msmon("nputrace", "--iterations", "2", "--log-file", "out")
    assert code == 1
    assert "npu-monitor (session" in text
    rows = training.trace("--pause-monitor")
    assert_traces_of(rows, rows[0]["trace"]["start_step"])
    assert {row["state"] for row in training.rows()} == {"monitoring"}
    code, text = training.msmon("npu-monitor", "stop", "--json")
    assert code == 0, text
    for row in json.loads(text.splitlines()[0])["rows"]:
        database = sqlite3.connect(row["files"][0])
        assert database.execute("SELECT reason FROM MSMON_GAPS").fetchall() == [
            ("paused for a trace",)
        ]
        (groups,) = database.execute(
            "SELECT value FROM META_DATA WHERE name = 'parallel_group_info'"
        ).fetchone()
        assert {tuple(group["global_ranks"]) for group in json.loads(groups).values()} == {(0, 1)}
        database.close()


def test_monitoring_is_refused_while_a_trace_waits(training):
    arguments = ("nputrace", "--iterations", "2", "--start-step", "10000000", "--log-file", "out")
    assert training.msmon(*arguments)[0] == 0
    code, text = training.msmon("npu-monitor", "start", "--kind", "Kernel")
    assert code == 1
    assert "nputrace (steps 10000000 to 10000001, ready) holds this process" in text
    code, text = training.msmon("nputrace", "--cancel")
    assert code == 0, text


def test_a_job_that_ends_early_leaves_a_partial_trace(training):
    waiting = subprocess.Popen(
        [
            *(sys.executable, "-m", "msmon.commands.main", "nputrace", "--iterations", "100000"),
            *("--log-file", "out", "--wait", "--json"),
        ],
        env=training.environ,
        cwd=training.directory,
        stdout=subprocess.PIPE,
    )
    training.await_state("tracing")
    training.await_steps(training.await_steps() + 5)
    assert training.end() == 0
    output, _ = waiting.communicate(timeout=DEADLINE_S)
    assert waiting.returncode == 1
    for row in json.loads(output)["rows"]:
        assert "of 100000 steps: the process ended after step" in row["text"]
        steps = annotations(row["files"][0], "ProfilerStep#")
        assert min(steps) == row["trace"]["start_step"]
