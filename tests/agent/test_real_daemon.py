"""Job, agent, daemon and export together, through a daemon that is killed on the way."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
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


HOLDS_LOCK = """
msmon.init(rank=2)
record_for_ever(KERNEL, 5000)
sys.stdin.readline()
ctypes.PyDLL(None).usleep(ctypes.c_uint(4_000_000))  # PyDLL keeps Python's lock meanwhile
sys.stdin.read()
double.double_stop_recording()
"""


def test_a_rank_whose_native_code_keeps_the_lock_is_silent_and_keeps_its_one_file(
    real_daemon, job, tmp_path, wait_for
):
    """The hold lasts five times as long as the silence after which a rank counted as lost."""

    def state() -> str:
        return getattr(real_daemon.row(), "state", "")

    started = job(HOLDS_LOCK)
    wait_for(lambda: state() == "idle", "registration")
    out = tmp_path / "out"
    fields = {"kinds": "Kernel", "log_file": str(out), "export_type": "DB"}
    assert real_daemon.request(MonitorRequest("start", fields)).outcome == "ok"
    started.line()
    wait_for(lambda: state() == "silent", "silence")
    answer = real_daemon.request(MonitorRequest("update", {"report_interval_s": 5}, timeout_s=1.0))
    assert "runs and has said nothing for" in answer.rows[0].text
    wait_for(lambda: state() == "monitoring", "the rank to speak again")
    stopped = real_daemon.request(MonitorRequest("stop"))
    assert stopped.outcome == "ok", stopped
    (path,) = out.glob("*.db")
    assert stopped.rows[0].files == [str(path)]
    kept = wait_for(lambda: real_daemon.row().state == "idle" and real_daemon.row().kept, "counts")
    with contextlib.closing(sqlite3.connect(path)) as database:
        (rows,) = database.execute("SELECT count(*) FROM COMPUTE_TASK_INFO").fetchone()
    assert rows == kept["Kernel"] > 5000


EXECUTES = """
msmon.init(rank=2)
record_for_ever(KERNEL, 1000)
sys.stdin.readline()
with open("/proc/self/cmdline") as words:
    program = words.read().split(chr(0))[2]
os.execv(sys.executable, [sys.executable, "-c", program])
"""


def test_a_program_that_execv_replaces_leaves_no_session_open(real_daemon, job, tmp_path, wait_for):
    """Pid and start time stay the same, so only the agent's hello tells the programs apart."""

    def is_idle() -> bool:
        return getattr(real_daemon.row(), "state", "") == "idle"

    started = job(EXECUTES)
    for number in range(2):
        wait_for(is_idle, f"registration {number}")
        fields = {"kinds": "Kernel", "log_file": str(tmp_path / f"out{number}")}
        assert real_daemon.request(MonitorRequest("start", fields)).outcome == "ok"
        started.line()
    for number in range(2):
        (path,) = (tmp_path / f"out{number}").glob("*.db")
        wait_for(lambda: end_of(path) == "replaced", f"the end of session {number}")  # noqa: B023


def end_of(database: Path) -> str:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        query = "SELECT value FROM META_DATA WHERE name = 'msmon_session_end'"
        return str(next(iter(connection.execute(query)), [""])[0])
