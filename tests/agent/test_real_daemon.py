"""Job, agent, daemon and export together, through a daemon that is killed on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.shared_memory import shared_memory_files

from msmon.bus.client import Client
from msmon.bus.endpoints import local_endpoint
from msmon.bus.messages import MonitorRequest, Reply, StatusRequest
from msmon.bus.rows import StatusRow
from msmon.errors import BusError

STEADY = """
msmon.init(rank=2)
record_for_ever(KERNEL, 5000)
sys.stdin.read()
double.double_stop_recording()
"""


class RealDaemon:
    def __init__(self, environ: dict[str, str]) -> None:
        self._environ = environ
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "msmon.commands.daemon", "--heartbeat-s", "0.2"],
            env=self._environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self, how: int = signal.SIGKILL) -> None:
        self.process.send_signal(how)
        self.process.wait()

    def request(self, message) -> Reply | None:
        try:
            with Client(local_endpoint(self._environ)) as client:
                return client.request(message)
        except BusError:  # not up yet
            return None

    def row(self) -> StatusRow | None:
        reply = self.request(StatusRequest())
        return reply.status_rows[0] if reply and reply.rows else None


@pytest.fixture
def real_daemon(job_environ, tmp_path) -> Iterator[RealDaemon]:
    (tmp_path / "run").mkdir(mode=0o700)
    job_environ["MSMON_KEYS_DIR"] = str(tmp_path / "keys")
    started = RealDaemon(job_environ)
    yield started
    if started.process.poll() is None:
        started.kill()


def exported(directory: Path) -> list[dict]:
    """Return the records of all complete lines; a killed writer may leave half of one."""
    return [
        json.loads(line)
        for path in directory.glob("*.jsonl")
        for line in path.read_bytes().split(b"\n")[:-1]
    ]


def test_a_killed_daemon_costs_no_record(real_daemon, job, tmp_path, wait_for):
    started = job(STEADY)
    wait_for(lambda: getattr(real_daemon.row(), "pid", 0) == started.process.pid, "registration")
    out = tmp_path / "out"
    fields = {"filter": "Kernel:MatMul", "log_file": str(out), "export_type": "Jsonl"}
    reply = real_daemon.request(MonitorRequest("start", fields))
    assert reply.outcome == "ok", reply
    wait_for(lambda: out.exists() and exported(out), "exported records")
    real_daemon.kill()
    real_daemon.start()
    wait_for(lambda: getattr(real_daemon.row(), "state", "") == "monitoring", "registration again")
    reply = real_daemon.request(MonitorRequest("stop"))
    assert reply.outcome == "ok", reply
    row = wait_for(lambda: (found := real_daemon.row()) and found.state == "idle" and found, "idle")
    real_daemon.kill(signal.SIGTERM)
    lines = exported(out)
    correlation_ids = [line["correlationId"] for line in lines if "correlationId" in line]
    assert row.kept == {"Kernel": len(set(correlation_ids))}
    assert len(correlation_ids) > 1000


def test_a_killed_rank_is_lost_and_leaves_nothing_behind(real_daemon, job, wait_for):
    before = shared_memory_files()
    started = job(STEADY)
    wait_for(lambda: getattr(real_daemon.row(), "pid", 0) == started.process.pid, "registration")
    assert real_daemon.request(MonitorRequest("start", {"kinds": "Kernel"})).outcome == "ok"
    started.process.kill()
    wait_for(lambda: getattr(real_daemon.row(), "state", "") == "lost", "loss", 12.0)
    assert shared_memory_files() <= before
