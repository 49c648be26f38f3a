"""torch_npu's own dynamic profiler calls msmon: it registers, polls, steps and reports.

Two ranks use the same shared memory. One of them forks the helper process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

JOB = Path(__file__).with_name("torch_npu_job.py")
RANKS = 2


class Rank:
    """One rank in a process of its own."""

    def __init__(self, number: int, arguments: list[str], environ: dict[str, str]) -> None:
        places = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(RANKS)}
        self.process = subprocess.Popen(
            [sys.executable, str(JOB), *arguments],
            env={**environ, **places, "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_PORT": "29999"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill_all(self) -> None:
        """Kill the rank and its helper process, which would live on and keep the pipes open."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.communicate()

    def end(self) -> list[str]:
        """Let the rank end; return the calls of torch_npu's profiler. Fails if the job failed."""
        out, errors = self.process.communicate("end\n", timeout=60)
        assert self.process.returncode == 0, errors
        (line,) = [line for line in out.splitlines() if line.startswith("profiler calls:")]
        return line.split()[2:]


@pytest.fixture
def job(
    torch_npu_sources: Path, environ: dict[str, str], tmp_path: Path
) -> Iterator[Callable[[str], list[Rank]]]:
    ranks: list[Rank] = []
    memory = f"Test{uuid.uuid4().hex}"

    def start(agent: str) -> list[Rank]:
        arguments = [str(torch_npu_sources), memory, agent]
        ranks.extend(Rank(number, arguments, environ) for number in range(RANKS))
        return ranks

    yield start
    for rank in ranks:
        rank.kill_all()
    Path(f"/dev/shm/DynamicProfileNpuShm{memory}").unlink(missing_ok=True)


def states(daemon: Any) -> dict[int, str]:
    return {row.pid: row.state for row in daemon.rows() or ()}


def test_ranks_with_agents_are_all_that_is_registered(daemon, job, wait_for, tmp_path):
    ranks = job("with-agent")
    expected = {rank.pid: "idle" for rank in ranks}
    wait_for(lambda: states(daemon) == expected, "both ranks and nobody else")
    wait_for(lambda: all(row.step > 12 for row in daemon.rows()), "steps")
    done = daemon.command("npu-monitor", "start", "--kind", "Kernel", "--log-file", str(tmp_path))
    assert done.returncode == 0, done
    wait_for(
        lambda: states(daemon) == {rank.pid: "monitoring" for rank in ranks}, "both monitoring"
    )
    assert daemon.command("npu-monitor", "stop").returncode == 0
    assert len(list(tmp_path.glob("*.db"))) == RANKS, "one session per rank"
    assert [rank.end() for rank in ranks] == [[]] * RANKS
    wait_for(lambda: daemon.rows() == [], "all gone")


def test_commands_reach_ranks_without_agents_through_the_framework(daemon, job, wait_for, tmp_path):
    ranks = job("without-agent")
    (row,) = wait_for(
        lambda: [row for row in daemon.rows() if row.state == "carrier"], "the carrier"
    )
    assert row.pid in [rank.pid for rank in ranks]
    trace = str(tmp_path / "trace")
    done = daemon.command("nputrace", "--iterations", "2", "--log-file", trace)
    assert done.returncode == 0, done
    assert "framework" in done.stdout
    out = tmp_path / "path=with equals"
    done = daemon.command("npu-monitor", "start", "--kind", "Kernel", "--log-file", str(out))
    assert done.returncode == 0, done
    expected = {rank.pid: "monitoring" for rank in ranks}
    wait_for(lambda: states(daemon) == expected, "both ranks monitoring, no carrier")
    assert daemon.command("npu-monitor", "stop").returncode == 0
    assert len(list(out.glob("*.db"))) == RANKS, "one session per rank"
    for calls in [rank.end() for rank in ranks]:
        assert (calls.count("start"), calls.count("stop")) == (1, 1), "nputrace ran in each rank"
    wait_for(lambda: daemon.rows() == [], "all gone")


def test_a_helper_whose_rank_was_killed_says_goodbye(daemon, job, wait_for):
    ranks = job("without-agent")
    wait_for(daemon.rows, "the carrier")
    for rank in ranks:
        rank.process.kill()
    wait_for(lambda: daemon.rows() == [], "the carrier's goodbye")
