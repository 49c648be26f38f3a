"""A stop on a full disk fails with the reason; nothing is lost when there is room in time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from exports import Database, databases
from job import ALL_KINDS, Job, wait_for
from surroundings import SmallDisk, possible

from msmon.bus.messages import MonitorRequest
from msmon.errors import BusError

pytestmark = pytest.mark.skipif(not possible(), reason="mounting a small disk needs root")

STOP_LIMIT_S = 5.0
DISK_BYTES = 64 << 20


class Setting(NamedTuple):
    """One monitored rank whose stop has failed, because its export's disk is full."""

    job: Job
    disk: SmallDisk

    @property
    def problem(self) -> str:
        """What the outputs lack, as status says; "" also while there is no daemon."""
        try:
            return "; ".join(sink.problem for sink in self.job.daemon_row().sinks if sink.problem)
        except BusError:
            return ""

    @property
    def database(self) -> Database:
        return databases(self.disk.directory / "db")[self.job.ranks[0].pid]


@pytest.fixture
def setting() -> Iterator[Setting]:
    directory = Path(tempfile.mkdtemp(prefix="msmon-")).resolve()
    job = Job(directory, 1, "rate=1000,step_ms=100,preload=1")
    with SmallDisk(directory / "disk", DISK_BYTES) as disk, job:
        job.start_daemon()
        wait_for(lambda: (directory / "run" / "daemon.sock").exists(), "the daemon")
        job.start_ranks()
        export = str(disk.directory / "db")
        started = job.command("start", kinds=ALL_KINDS, log_file=export, export_type="DB")
        assert started.outcome == "ok", started
        rank = job.ranks[0]
        wait_for(lambda: sum(job.rows()[rank.pid].kept.values()) > 0, "records")
        disk.fill()
        setting = Setting(job, disk)
        wait_for(lambda: setting.problem, "the problem")
        stopped = job.request(MonitorRequest("stop", timeout_s=STOP_LIMIT_S))
        assert stopped.outcome == "failed"
        assert "can't be written" in stopped.rows[0].text
        assert "full" in stopped.rows[0].text
        yield setting
    shutil.rmtree(directory)


def test_a_stop_on_a_full_disk_fails_with_the_reason_and_loses_nothing(setting: Setting) -> None:
    setting.disk.empty()
    wait_for(lambda: not setting.problem, "recovery")
    setting.job.end_daemon()
    assert setting.database.counts() == setting.job.ranks[0].recorded()
    assert setting.database.gaps() == []


def test_a_daemon_that_is_restarted_on_the_full_disk_gets_all_again(setting: Setting) -> None:
    job = setting.job
    job.end_daemon()
    job.start_daemon()
    wait_for(lambda: "full" in setting.problem, "the problem, with the next daemon")
    setting.disk.empty()
    wait_for(lambda: setting.database.end == "stopped", "the end of the session")
    job.end_daemon()
    assert setting.database.counts() == job.ranks[0].recorded()
    assert setting.database.gaps() == []


def test_what_a_rank_leaves_on_a_full_disk_and_no_daemon_can_keep_is_in_the_log(
    setting: Setting,
) -> None:
    """The rank has ended before there was room, and then the daemon: nobody has its rest."""
    job, rank = setting.job, setting.job.ranks[0]
    rank.end()
    kept = sum(job.rows()[rank.pid].kept.values())
    job.end_daemon()
    log = (job.directory / "daemon.log").read_text()
    (line,) = (line for line in log.splitlines() if "ends before all is written" in line)
    setting.disk.empty()
    written = sum(setting.database.counts().values())
    assert f"'disk': {kept - written}" in line.replace("<DropStage.DISK: 'disk'>", "'disk'")
