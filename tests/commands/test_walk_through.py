"""The main job as a user does it: a daemon, a running rank, and the commands between them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job import Job, wait_for


@pytest.fixture
def job() -> Iterator[Job]:
    """A job of one rank; nothing runs yet."""
    directory = Path(tempfile.mkdtemp(prefix="msmon-")).resolve()
    with Job(directory, 1, "step_ms=40") as started:
        started.daemon_options = ("--heartbeat-s", "0.2")
        yield started
    # a killed daemon's output processes may still be at work there
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def registered(job: Job) -> Job:
    """A job whose rank is registered and idle."""
    job.start_daemon()
    job.start_ranks()
    return job


def row(job: Job) -> dict[str, Any]:
    """What status says of the rank; empty while it is not registered."""
    return job.rows().get(job.ranks[0].pid, {})


def test_the_file_holds_exactly_the_matching_records(registered: Job):
    filter_text = "Kernel:MatMul"
    started = registered.msmon(
        *("npu-monitor", "start", "--filter", filter_text, "--report-interval-s", "1"),
        *("--log-file", "my out", "--export-type", "jsonl"),
    )
    assert (started.returncode, started.stderr) == (0, "")
    wait_for(lambda: row(registered)["kept"].get("Kernel", 0) > 1000, "1000 kernels")

    assert registered.msmon("npu-monitor", "update", "--report-interval-s", "2").returncode == 0
    settings = row(registered)["settings"]
    assert (settings["report_interval_s"], settings["filter"]) == (2.0, filter_text)
    assert settings["kinds"] == "Kernel"

    stopped = registered.msmon("npu-monitor", "stop")
    assert (stopped.returncode, stopped.stderr) == (0, "")
    (path,) = (registered.directory / "my out").glob("*.jsonl")
    assert str(path) in stopped.stdout

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    written = Counter(line["name"] for line in lines if line["kind"] == "Kernel")
    truth = registered.ranks[0].recorded_so_far()
    assert written == {
        name: count
        for (kind, name), (count, _) in truth.items()
        if kind == "Kernel" and "MatMul" in name
    }
    assert f"{sum(written.values())} kept, 0 dropped" in stopped.stdout


def test_a_session_goes_on_after_the_daemon_was_killed(registered: Job):
    assert registered.msmon("npu-monitor", "start", "--kind", "Kernel").returncode == 0
    registered.end_daemon(signal.SIGKILL)
    assert "no daemon" in registered.msmon("status").stderr
    registered.start_daemon()
    registered.await_states("monitoring")
    found = row(registered)
    assert (found["rank"], found["settings"]["kinds"]) == (0, "Kernel")
    stopped = registered.msmon("npu-monitor", "stop")
    assert stopped.returncode == 0
    assert "0 dropped" in stopped.stdout


def test_each_way_to_reach_nobody_has_its_own_message(job: Job):
    def stop(*selection: str) -> str:
        done = job.msmon("npu-monitor", "stop", *selection)
        assert done.returncode == 1
        return done.stderr

    assert "no daemon runs" in stop()
    job.start_daemon()
    wait_for(lambda: "no daemon" not in stop(), "the daemon")
    assert "no process is registered" in stop()
    rank = job.start_rank(0)
    job.await_states("idle")
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert "never registered" in stop("--pid", str(stranger.pid))
    stranger.kill()
    stranger.wait()
    assert "exists" in stop("--pid", str(stranger.pid))
    assert f"pid {rank.pid} (rank 0)" in stop("--rank", "7")
    rank.kill()
    wait_for(lambda: row(job).get("state") == "lost", "the rank to be lost")
    assert "was registered and fell silent" in stop("--pid", str(rank.pid))
