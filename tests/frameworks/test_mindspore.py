"""MindSpore's own dynamic profiler calls msmon: it registers, polls, and passes commands on.

The wheel has 750 MB, so no script fetches it. MSMON_MINDSPORE names the directory of an unpacked
one, version 2.7.0 or later. Only its mindspore/profiler is read.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("mindspore_job.py")
RANKS = 2


@pytest.fixture
def sources() -> str:
    directory = os.environ.get("MSMON_MINDSPORE", "")
    if not directory:
        pytest.skip("MSMON_MINDSPORE names no unpacked MindSpore wheel (750 MB, not fetched)")
    return directory


@pytest.fixture
def ranks(sources, environ):
    memory = f"DynamicProfileShmTest{uuid.uuid4().hex}"
    jobs = [
        subprocess.Popen(
            [sys.executable, str(JOB), sources, memory],
            env={**environ, "RANK_ID": str(number), "RANK_SIZE": str(RANKS), "MS_SCHED_PORT": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        for number in range(RANKS)
    ]
    yield jobs
    for job in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
    Path("/dev/shm", memory).unlink(missing_ok=True)


def test_a_command_repeated_at_every_step_acts_once(daemon, ranks, wait_for, tmp_path):
    (row,) = wait_for(daemon.rows, "the carrier")
    assert row.state == "carrier"
    out = tmp_path / "a=b"
    done = daemon.command("npu-monitor", "start", "--kind", "Kernel", "--log-file", str(out))
    assert done.returncode == 0, done
    expected = {job.pid: "monitoring" for job in ranks}
    wait_for(lambda: {row.pid: row.state for row in daemon.rows()} == expected, "both ranks")
    assert daemon.command("npu-monitor", "stop").returncode == 0
    for job in ranks:  # The old text is still in shared memory, but no session starts again.
        _, errors = job.communicate(b"end\n", timeout=60)
        assert job.returncode == 0, errors
    assert len(list(out.glob("*.db"))) == RANKS, "one session per rank"
    wait_for(lambda: daemon.rows() == [], "all gone")
