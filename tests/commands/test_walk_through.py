"""What a user meets beside the main way: a daemon that was killed, and commands that reach nobody.

The main way itself is the walk-through of the README; tests/docs runs it.
"""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from job import Job, wait_for

from msmon.bus.rows import StatusRow


@pytest.fixture
def registered(job: Job) -> Job:
    """A job whose rank is registered and idle."""
    job.start_daemon()
    job.start_ranks()
    return job


def row(job: Job) -> StatusRow | None:
    """What status says of the rank; None while it is not registered."""
    return job.rows().get(job.ranks[0].pid)


def test_a_session_goes_on_after_the_daemon_was_killed(registered: Job):
    assert registered.msmon("npu-monitor", "start", "--kind", "Kernel").returncode == 0
    registered.end_daemon(signal.SIGKILL)
    assert "no daemon" in registered.msmon("status").stderr
    registered.start_daemon()
    registered.await_states("monitoring")
    found = row(registered)
    assert (found.rank, found.settings.kinds) == (0, "Kernel")
    stopped = registered.msmon("npu-monitor", "stop")
    assert stopped.returncode == 0
    assert " in windows" in stopped.stdout
    assert "dropped" not in stopped.stdout


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
    wait_for(lambda: row(job).state == "lost", "the rank to be lost")
    assert "was registered and fell silent" in stop("--pid", str(rank.pid))


def test_a_rank_that_was_killed_counts_what_came_and_a_stop_tells_of_it(
    registered: Job, tmp_path: Path
) -> None:
    exports = tmp_path / "out"
    start = ("npu-monitor", "start", "--kind", "Kernel", "--log-file", str(exports))
    assert registered.msmon(*start).returncode == 0
    wait_for(lambda: row(registered).received, "the first records")
    registered.ranks[0].kill()
    wait_for(lambda: row(registered).state == "lost", "the rank to be lost")
    found = row(registered)
    stopped = registered.msmon("npu-monitor", "stop")
    assert stopped.returncode == 1
    assert "the process vanished" in stopped.stdout
    assert found.files[0] in stopped.stdout
    assert "vanished" not in registered.msmon("npu-monitor", "stop").stdout
    with contextlib.closing(sqlite3.connect(found.files[0])) as database:
        (written,) = database.execute("SELECT count(*) FROM COMPUTE_TASK_INFO").fetchone()
    assert found.kept["Kernel"] >= written > 0
    assert found.drops == {"uplink": None, "windows": None}
