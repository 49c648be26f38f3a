"""Under ``msmon run torchrun`` the ranks register, and no other process of the job does."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch is not installed; scripts/test --full has it",
)

BUSY = Path(__file__).with_name("busy_job.py")
RUN = [sys.executable, "-m", "msmon.commands.main", "run", "--"]


@pytest.fixture(autouse=True)
def _installed():
    files = importlib.metadata.files("msmon") or []
    if "msmon-autostart.pth" not in [path.name for path in files]:
        pytest.skip(
            "msmon is not installed here with its msmon-autostart.pth: pip install it again"
        )


@pytest.fixture
def torchrun(environ, tmp_path):
    """Start torchrun with two ranks. At the end, kill all processes that are left of it."""
    jobs: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str, run: list[str] = RUN) -> subprocess.Popen[bytes]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", name]
        jobs.append(
            subprocess.Popen(
                [*run, *launcher, *meeting, str(BUSY), *arguments],
                env={**environ, "MSMON_TEST_STOP_FILE": str(tmp_path / name)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        return jobs[-1]

    yield start
    for job in jobs:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def seen(daemon) -> list[tuple[str, int]]:
    return sorted((row.job_id, row.rank) for row in daemon.rows())


def test_exactly_the_ranks_register(daemon, torchrun, wait_for, tmp_path):
    job = torchrun("job-a", "0")
    wait_for(lambda: len(daemon.rows()) == 2, "two ranks")
    wait_for(lambda: all(row.step > 8 for row in daemon.rows()), "two rounds of the DataLoader")
    assert seen(daemon) == [("job-a", 0), ("job-a", 1)]
    (tmp_path / "job-a").touch()
    assert job.wait(60) == 0
    every = daemon.command("status", "--json")
    assert every.stdout.count('"rank": ') == 2, "nobody else has ever been here"


def test_a_failing_job_fails_as_without_msmon(daemon, torchrun, tmp_path):
    (tmp_path / "plain").touch()
    plain = torchrun("plain", "3", "alone", run=[]).wait(60)
    assert torchrun("plain", "3", "alone").wait(60) == plain != 0


def test_a_command_to_one_job_never_reaches_another(daemon, torchrun, wait_for, tmp_path):
    for name in ("job-a", "job-b"):
        torchrun(name, "0", "alone")
    both = [(name, rank) for name in ("job-a", "job-b") for rank in (0, 1)]
    wait_for(lambda: seen(daemon) == both, "four ranks of two jobs")
    started = daemon.command("npu-monitor", "start", "--kind", "Kernel", "--job-id", "job-a")
    assert started.returncode == 0, started

    def states() -> set[tuple[str, str]]:
        return {(row.job_id, row.state) for row in daemon.rows()}

    wait_for(lambda: "unknown" not in dict(states()).values(), "a heartbeat of every rank")
    assert states() == {("job-a", "monitoring"), ("job-b", "idle")}
    for name in ("job-a", "job-b"):
        (tmp_path / name).touch()
    wait_for(lambda: daemon.rows() == [], "both jobs ended")
