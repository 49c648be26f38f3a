"""What many agents cost one daemon, and how soon all of them have answered a command.

- 1,000 idle agents that send heartbeats: CPU and memory of the daemon, and the time until
  each of them has answered a start and a stop;
- 16 agents, each of which sends every second a window of 200,000 records: CPU of the daemon,
  and whether every window reaches its output.

The agents are those of ``light_agents.py``, in a few processes.

    python benchmarks/fleet.py [AGENTS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from light_agents import OPERATORS, RECORDS_PER_SECOND

from msmon.bus.client import Client
from msmon.bus.endpoints import local_endpoint
from msmon.bus.messages import Message, MonitorRequest, Reply, StatusRequest
from msmon.errors import BusError

AGENTS = 1000
AGENTS_PER_PROCESS = 250
IDLE_SECONDS = 20.0
IDLE_CPU_BUDGET = 0.05
MEMORY_BUDGET_MIB = 150.0
ANSWER_BUDGET_S = 3.0

BUSY_AGENTS = 16
BUSY_SECONDS = 10.0
BUSY_CPU_BUDGET = 0.10
START_LIMIT_S = 120.0

ROOT = Path(__file__).resolve().parent.parent
LIGHT_AGENTS = Path(__file__).with_name("light_agents.py")


class Fleet:
    """A daemon and the agents that register with it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.windows_path = directory / "windows"
        self._environ = {
            **os.environ,
            "MSMON_RUNTIME_DIR": str(directory / "run"),
            "MSMON_KEYS_DIR": str(directory / "keys"),
            "PYTHONPATH": str(ROOT),
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        sink = f"metrics-json:path={self.windows_path}"
        command = ["-m", "msmon.commands.daemon", "--log-level", "error", "--sink", sink]
        self._start(*command, "--heartbeat-s", "2")
        self.daemon = psutil.Process(self._processes[0].pid)
        self._await(lambda: self._live() == 0, "the daemon")

    def add(self, agents: int, send_windows: bool = False) -> None:
        """Start agents and wait until they are registered."""
        for first in range(0, agents, AGENTS_PER_PROCESS):
            count = min(AGENTS_PER_PROCESS, agents - first)
            self._start(str(LIGHT_AGENTS), str(first), str(count), str(int(send_windows)))
        self._await(lambda: self._live() >= agents, f"{agents} agents to register")

    def request(self, message: Message) -> Reply:
        """Send one request to the daemon and return the reply."""
        with Client(local_endpoint(self._environ), START_LIMIT_S) as client:
            reply: Reply = client.request(message, START_LIMIT_S)
            return reply

    def seconds_of(self, action: str, **fields: Any) -> float:
        """Return the seconds until all agents have answered a command."""
        began_s = time.perf_counter()
        reply = self.request(MonitorRequest(action, fields, timeout_s=START_LIMIT_S))
        if reply.outcome != "ok":
            raise SystemExit(f"{action}: {reply.outcome} {reply.text}")
        return time.perf_counter() - began_s

    def cpu_share(self, seconds: float) -> float:
        """Return the share of a core that the daemon uses in the next seconds."""
        before = self.daemon.cpu_times()
        time.sleep(seconds)
        after = self.daemon.cpu_times()
        return (after.user + after.system - before.user - before.system) / seconds

    def end(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait()

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + START_LIMIT_S
        while not condition():
            if time.monotonic() > deadline_s:
                raise SystemExit(f"waited in vain for {what}")
            time.sleep(0.5)

    def _live(self) -> int:
        """Return how many processes live; -1 while there is no daemon."""
        try:
            rows = self.request(StatusRequest()).rows
        except BusError:
            return -1
        return sum(row.state != "lost" for row in rows)

    def _start(self, *arguments: str) -> None:
        self._processes.append(
            subprocess.Popen(
                [sys.executable, *arguments], env=self._environ, stdin=subprocess.DEVNULL
            )
        )


@contextmanager
def fleet() -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="msmon-") as directory:
        started = Fleet(Path(directory))
        try:
            yield started
        finally:
            started.end()


def ratio(name: str, value: float) -> None:
    print(f"RATIO {name} {value:.2f}", flush=True)


def measure_idle(agents: int, show: Callable[[str, float], None]) -> None:
    with fleet() as idle:
        idle.add(agents)
        share = idle.cpu_share(IDLE_SECONDS)
        start_s = idle.seconds_of("start", kinds="Kernel", report_interval_s=60.0)
        stop_s = idle.seconds_of("stop")
        memory_mib = idle.daemon.memory_info().rss / 2**20
    print(f"{agents} idle agents: {share:.1%} of a core, {memory_mib:.0f} MiB resident")
    print(f"all have answered a start after {start_s:.2f} s, a stop after {stop_s:.2f} s")
    show("fleet_idle_cpu_within_budget", IDLE_CPU_BUDGET / share)
    show("fleet_memory_within_budget", MEMORY_BUDGET_MIB / memory_mib)
    show("fleet_answers_within_budget", ANSWER_BUDGET_S / max(start_s, stop_s))


def measure_busy(show: Callable[[str, float], None]) -> None:
    with fleet() as busy:
        busy.add(BUSY_AGENTS, send_windows=True)
        busy.seconds_of("start", kinds="Kernel", report_interval_s=1.0)
        time.sleep(1.0)
        share = busy.cpu_share(BUSY_SECONDS)
        rows = busy.request(StatusRequest()).rows
        busy.seconds_of("stop")
        kept = sum(sum(row.received.values()) for row in rows)
        busy.end()
        lines = busy.windows_path.read_bytes().count(b"\n")
    windows = lines / OPERATORS
    print(
        f"{BUSY_AGENTS} agents at {RECORDS_PER_SECOND:,} records/s, windows of a second: "
        f"{share:.1%} of a core; at least {kept / RECORDS_PER_SECOND:.0f} windows sent, "
        f"{windows:.0f} written"
    )
    if lines % OPERATORS or windows < kept / RECORDS_PER_SECOND:
        raise SystemExit("windows are missing in the output")
    show("fleet_windows_cpu_within_budget", BUSY_CPU_BUDGET / share)


def main() -> None:
    measure_idle(int(sys.argv[1]) if len(sys.argv) > 1 else AGENTS, ratio)
    measure_busy(ratio)


if __name__ == "__main__":
    main()
