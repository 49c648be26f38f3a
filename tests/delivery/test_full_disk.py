"""A stop on a full disk fails with the reason; nothing is lost when there is room in time."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from exports import databases
from job import ALL_KINDS, Job, wait_for
from surroundings import SmallDisk, possible

from msmon.bus.messages import MonitorRequest

pytestmark = pytest.mark.skipif(not possible(), reason="mounting a small disk needs root")

STOP_LIMIT_S = 5.0


def test_a_stop_on_a_full_disk_fails_with_the_reason_and_loses_nothing() -> None:
    directory = Path(tempfile.mkdtemp(prefix="msmon-")).resolve()
    job = Job(directory, 1, "rate=1000,step_ms=100,preload=1")
    with SmallDisk(directory / "disk", 64 << 20) as disk, job:
        job.start_daemon()
        wait_for(lambda: (directory / "run" / "daemon.sock").exists(), "the daemon")
        job.start_ranks()
        export = str(directory / "disk" / "db")
        started = job.command("start", kinds=ALL_KINDS, log_file=export, export_type="DB")
        assert started.outcome == "ok", started
        rank = job.ranks[0]
        wait_for(lambda: sum(job.rows()[rank.pid].kept.values()) > 0, "records")
        disk.fill()
        wait_for(lambda: any(sink.problem for sink in job.daemon_row().sinks), "the problem")
        stopped = job.request(MonitorRequest("stop", timeout_s=STOP_LIMIT_S))
        assert stopped.outcome == "failed"
        assert "can't be written" in stopped.rows[0].text
        assert "full" in stopped.rows[0].text
        disk.empty()
        wait_for(lambda: not any(sink.problem for sink in job.daemon_row().sinks), "recovery")
        job.end_daemon()
        database = databases(Path(export))[rank.pid]
        assert database.counts() == rank.recorded()
        assert database.gaps() == []
    shutil.rmtree(directory)
