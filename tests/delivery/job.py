"""A simulated job and the daemon that watches it, as real processes on this machine.

All their files are in one directory. The delivery tests and ``scripts/soak`` use it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import psutil

from msmon.bus.client import Client
from msmon.bus.endpoints import Endpoint, local_endpoint
from msmon.bus.messages import Message, MonitorRequest, Reply, Selection, StatusRequest
from msmon.bus.rows import DaemonRow, StatusRow
from msmon.errors import BusError

T = TypeVar("T")
Operators = dict[tuple[str, str], tuple[int, int]]
"""(kind, name) → (records, total ns)."""

ALL_KINDS = "Kernel,API,NodeAPI,AclAPI,RuntimeAPI,Communication,Hccl,Marker,Memory,MemSet,MemCpy"
DEADLINE_S = 150.0
"""After this time a wait counts as a hang. It is so long because the machine may be loaded."""

REPLY_MARGIN_S = 10.0
"""How much longer a caller waits than it lets the daemon wait."""

POLL_S = 0.05
ITERATION_S = 0.005

# Trains until SIGTERM and then says how much the slowest iteration took beyond its time. On SIGUSR1
# it holds the GIL for some time, as a C extension may do.
TRAIN = f"""
import ctypes, json, os, signal, time
ended, held = [], []
def hold(*_):
    ctypes.PyDLL(None).usleep(int(float(os.environ["HOLD_S"]) * 1e6))
    held.append(1)
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
signal.signal(signal.SIGUSR1, hold)
import msmon
msmon.init()
longest_s, before_s = 0.0, time.perf_counter()
while not ended:
    time.sleep({ITERATION_S})
    msmon.step()
    now_s = time.perf_counter()
    if not held:
        longest_s = max(longest_s, now_s - before_s - {ITERATION_S})
    held.clear()
    before_s = now_s
msmon.shutdown()
with open(os.environ["STALL_FILE"], "w") as file:
    json.dump(longest_s, file)
"""


@dataclass
class Rank:
    """One process of the job.

    Its simulation writes ``ledger`` when a session has stopped, its loop writes ``stall`` at
    the end.
    """

    rank: int
    process: subprocess.Popen[bytes]
    ledger: Path
    stall: Path
    killed: bool = False
    ended: bool = False
    """It was told to end, and did so in good order."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def recorded(self) -> dict[str, int]:
        """Return kind name → records that the simulation wrote into buffers."""
        emitted: dict[str, int] = json.loads(self.ledger.read_text())["emitted"]
        return emitted

    def recorded_so_far(self) -> Operators:
        """Return (kind, name) → (records, total ns), from all sessions that have stopped.

        Records without a name have the key (kind, ""), and 0 as their time.
        """
        if not self.ledger.exists():
            return {}
        ledger = json.loads(self.ledger.read_text())
        operators = {
            (row["kind"], row["name"]): (row["count"], row["total_ns"])
            for row in ledger["operators"]
        }
        for kind, count in ledger["emitted"].items():
            named = sum(item[0] for key, item in operators.items() if key[0] == kind)
            operators[kind, ""] = (count - named, 0)
        return operators

    def end(self) -> None:
        """Let the rank end normally, and wait."""
        self.ended = True
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        self.killed = True
        self.process.kill()
        self.process.wait()

    def longest_stall_s(self) -> float:
        return float(json.loads(self.stall.read_text()))


class Job:
    """A daemon and ranks. The path of ``directory`` must be short enough for a socket."""

    def __init__(self, directory: Path, ranks: int, simulation: str) -> None:
        self.directory = directory
        self.size = ranks
        self.ranks: list[Rank] = []
        self.daemon: subprocess.Popen[bytes] | None = None
        self.daemon_options: tuple[str, ...] = ()
        self.daemon_variables: dict[str, str] = {}
        self.keys = directory / "keys"
        self._simulation = simulation
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MSMON")},
            "MSMON_RUNTIME_DIR": str(directory / "run"),
            "MSMON_KEYS_DIR": str(self.keys),
            "MSMONITOR_LOG_PATH": str(directory),
        }

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        processes = [rank.process for rank in self.ranks]
        for process in [*processes, *([self.daemon] if self.daemon else [])]:
            if process.poll() is None:
                process.kill()
                process.send_signal(signal.SIGCONT)
            process.wait()

    # --- processes ------------------------------------------------------------------------

    def start_daemon(self) -> None:
        """Start the daemon, with ``daemon_options`` and ``daemon_variables``."""
        command = [sys.executable, "-W", "error", "-m", "msmon.commands.daemon"]
        with (self.directory / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen(
                [*command, *self.daemon_options],
                env={**self._environ, **self.daemon_variables},
                stdin=subprocess.DEVNULL,
                stderr=log,
            )

    def end_daemon(self, how: int = signal.SIGTERM) -> None:
        """Send the daemon a signal that ends it, and wait."""
        assert self.daemon is not None
        self.daemon.send_signal(how)
        self.daemon.wait(DEADLINE_S)

    def start_rank(
        self,
        rank: int,
        program: str = TRAIN,
        prefix: tuple[str, ...] = (),
        variables: Mapping[str, str] | None = None,
    ) -> Rank:
        """Start a rank. ``prefix`` is a command that runs it, for example in another namespace."""
        ledger = self.directory / f"ledger-{len(self.ranks)}.json"
        stall = self.directory / f"stall-{len(self.ranks)}.json"
        environ = {
            **self._environ,
            "MSMON_SIMULATE": f"{self._simulation},ledger={ledger}",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "STALL_FILE": str(stall),
            **(variables or {}),
        }
        process = subprocess.Popen(
            [*prefix, sys.executable, "-W", "error", "-c", program],
            env=environ,
            stdin=subprocess.DEVNULL,
        )
        started = Rank(rank, process, ledger, stall)
        self.ranks.append(started)
        return started

    def start_ranks(self) -> None:
        """Start all ranks and wait until they are registered."""
        for rank in range(self.size):
            self.start_rank(rank)
        self.await_states("idle")

    def end_ranks(self) -> None:
        """Let every rank that still lives end normally."""
        for rank in self.living:
            rank.process.send_signal(signal.SIGTERM)
        for rank in self.living:
            rank.process.wait(DEADLINE_S)

    @property
    def living(self) -> list[Rank]:
        """The ranks that run."""
        return [rank for rank in self.ranks if not (rank.killed or rank.ended)]

    # --- asking the daemon ------------------------------------------------------------------

    def endpoint(self) -> Endpoint:
        """Return where the daemon is. Raises BusError where there is none."""
        return local_endpoint(self._environ)

    def request(self, message: Message, timeout_s: float = DEADLINE_S) -> Reply:
        """Send one request. Raises what the client raises."""
        with Client(self.endpoint()) as client:
            reply: Reply = client.request(message, timeout_s)
            return reply

    def command(self, action: str, *ranks: Rank, **fields: Any) -> Reply:
        """Start, update or stop npu-monitor in these ranks, or in all if none is given."""
        selection = Selection(pids=[rank.pid for rank in ranks])
        request = MonitorRequest(action, fields, selection, timeout_s=DEADLINE_S)
        return self.request(request, DEADLINE_S + REPLY_MARGIN_S)

    def rows(self) -> dict[int, StatusRow]:
        """Return pid → row of the status; {} while there is no daemon."""
        try:
            return {row.pid: row for row in self.request(StatusRequest()).status_rows}
        except BusError:
            return {}

    def daemon_row(self) -> DaemonRow:
        """Return what the daemon says of itself."""
        return self.request(StatusRequest()).daemon

    def output_process(self, suffix: str) -> psutil.Process:
        """Return the output process that has a file with this suffix open."""
        assert self.daemon is not None
        (found,) = (
            process
            for process in psutil.Process(self.daemon.pid).children()
            if any(file.path.endswith(suffix) for file in process.open_files())
        )
        return found

    def await_states(self, state: str, *ranks: Rank) -> dict[int, StatusRow]:
        """Wait until these ranks, or all that live, are in a state, and return all rows."""
        pids = [rank.pid for rank in ranks or self.living]

        def reached() -> dict[int, StatusRow] | None:
            for rank in self.living:
                assert rank.process.poll() is None, f"rank {rank.rank} ended by itself"
            rows = self.rows()
            return rows if all(pid in rows and rows[pid].state == state for pid in pids) else None

        return wait_for(reached, f"state {state} of {pids}")

    def msmon(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command ``msmon``."""
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "msmon.commands.main", *arguments],
            env=self._environ,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )


def wait_for(condition: Callable[[], T], what: str, limit_s: float = DEADLINE_S) -> T:
    """Poll until the condition holds and return its value."""
    deadline_s = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"waited {limit_s:g} s in vain: {what}"
        time.sleep(POLL_S)
    return value
