"""The main job as a user does it: a daemon, a running rank, and the commands between them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from msmon.bus.client import Client
from msmon.bus.endpoints import local_endpoint
from msmon.bus.messages import StatusRequest
from msmon.errors import BusError

DEADLINE_S = 15.0
POLL_S = 0.05

TRAIN = """
import time, msmon
msmon.init()
while True:
    time.sleep(0.02)
    msmon.step()
"""


class Machine:
    """A directory to work in, with a runtime directory and the processes started there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ledger = directory / "ledger.json"
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MSMON")},
            "MSMON_RUNTIME_DIR": str(directory / "run"),
            "MSMON_KEYS_DIR": str(directory / "keys"),
            "MSMONITOR_LOG_PATH": str(directory),
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def python(self, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", *arguments],
            env={**self.environ, **variables},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
        )
        self.processes.append(process)
        return process

    def start_daemon(self) -> subprocess.Popen[bytes]:
        return self.python("-m", "msmon.commands.daemon", "--heartbeat-s", "0.2")

    def start_rank(self) -> subprocess.Popen[bytes]:
        simulation = f"step_ms=40,ledger={self.ledger}"
        return self.python("-c", TRAIN, RANK="0", MSMON_SIMULATE=simulation)

    def msmon(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "msmon.commands.main", *arguments],
            env=self.environ,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )

    def row(self) -> dict[str, Any]:
        """What status says of the rank; empty while it is not registered."""
        try:
            with Client(local_endpoint(self.environ)) as client:
                rows = client.request(StatusRequest()).rows
        except BusError:
            return {}  # no daemon yet
        return rows[0] if rows else {}

    def await_row(self, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline_s = time.monotonic() + DEADLINE_S
        while not matches(row := self.row()):
            assert time.monotonic() < deadline_s, f"status still says {row}"
            time.sleep(POLL_S)
        return row


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine(Path(tempfile.mkdtemp(prefix="msmon-")).resolve())
    yield machine
    for process in machine.processes:
        process.kill()
        process.wait()
    # a killed daemon's output processes may still be at work there
    shutil.rmtree(machine.directory, ignore_errors=True)


@pytest.fixture
def registered(machine: Machine) -> Machine:
    """A machine with a daemon and one idle rank."""
    machine.start_daemon()
    machine.start_rank()
    machine.await_row(lambda row: row.get("state") == "idle")
    return machine


def test_the_file_holds_exactly_the_matching_records(registered: Machine):
    filter_text = "Kernel:MatMul"
    started = registered.msmon(
        *("npu-monitor", "start", "--filter", filter_text, "--report-interval-s", "1"),
        *("--log-file", "my out", "--export-type", "jsonl"),
    )
    assert (started.returncode, started.stderr) == (0, "")
    registered.await_row(lambda row: row["kept"].get("Kernel", 0) > 1000)

    assert registered.msmon("npu-monitor", "update", "--report-interval-s", "2").returncode == 0
    settings = registered.row()["settings"]
    assert (settings["report_interval_s"], settings["filter"]) == (2.0, filter_text)
    assert settings["kinds"] == "Kernel"

    stopped = registered.msmon("npu-monitor", "stop")
    assert (stopped.returncode, stopped.stderr) == (0, "")
    (path,) = (registered.directory / "my out").iterdir()
    assert str(path) in stopped.stdout

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    written = Counter(line["name"] for line in lines if line["kind"] == "Kernel")
    truth = json.loads(registered.ledger.read_text())["operators"]
    assert written == {
        operator["name"]: operator["count"]
        for operator in truth
        if operator["kind"] == "Kernel" and "MatMul" in operator["name"]
    }
    assert f"{sum(written.values())} kept, 0 dropped" in stopped.stdout


def test_a_session_goes_on_after_the_daemon_was_killed(registered: Machine):
    assert registered.msmon("npu-monitor", "start", "--kind", "Kernel").returncode == 0
    registered.processes[0].kill()
    assert "no daemon" in registered.msmon("status").stderr
    registered.start_daemon()
    row = registered.await_row(lambda row: row.get("state") == "monitoring")
    assert (row["rank"], row["settings"]["kinds"]) == (0, "Kernel")
    stopped = registered.msmon("npu-monitor", "stop")
    assert stopped.returncode == 0
    assert "0 dropped" in stopped.stdout


def test_each_way_to_reach_nobody_has_its_own_message(machine: Machine):
    def stop(*selection: str) -> str:
        done = machine.msmon("npu-monitor", "stop", *selection)
        assert done.returncode == 1
        return done.stderr

    assert "no daemon runs" in stop()
    machine.start_daemon()
    deadline_s = time.monotonic() + DEADLINE_S
    while "no daemon" in (nobody := stop()) and time.monotonic() < deadline_s:
        pass
    assert "no process is registered" in nobody
    rank = machine.start_rank()
    machine.await_row(lambda row: row.get("state") == "idle")
    stranger = machine.python("-c", "import time; time.sleep(60)")
    assert "never registered" in stop("--pid", str(stranger.pid))
    stranger.kill()
    stranger.wait()
    assert "exists" in stop("--pid", str(stranger.pid))
    assert f"pid {rank.pid} (rank 0)" in stop("--rank", "7")
    rank.send_signal(signal.SIGKILL)
    machine.await_row(lambda row: row.get("state") == "lost")
    assert "was registered and fell silent" in stop("--pid", str(rank.pid))
