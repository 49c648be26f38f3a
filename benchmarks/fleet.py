"""What many agents cost one daemon, and how soon all of them have answered a command.

- 1,000 idle agents that send heartbeats: CPU and memory of the daemon, and the time until
  each of them has answered a start and a stop;
- 16 agents that aggregate 200,000 records per second each and send a window of them every
  second: CPU of the daemon, and whether every window reaches its output.

The agents are DEALER sockets in a few processes; they speak the real protocol, with the
real codec and CURVE, but do nothing else.

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

import numpy as np
import psutil
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msmon
from msmon.bus.client import Client
from msmon.bus.codec import decode, encode
from msmon.bus.endpoints import Endpoint, local_endpoint
from msmon.bus.messages import (
    Answer,
    Command,
    Hello,
    Message,
    MonitorRequest,
    Refused,
    Reply,
    SessionClosed,
    SessionOpened,
    Status,
    StatusRequest,
    Welcome,
    WindowReport,
)
from msmon.errors import BusError
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.statistics import WindowStatistics
from msmon.records.windows import Window
from msmon.sessions import Counts, ProcessInfo, SessionEnd

AGENTS = 1000
AGENTS_PER_PROCESS = 250
IDLE_SECONDS = 20.0
IDLE_CPU_BUDGET = 0.05
MEMORY_BUDGET_MIB = 150.0
ANSWER_BUDGET_S = 3.0

BUSY_AGENTS = 16
RECORDS_PER_SECOND = 200_000
OPERATORS = 60
BUSY_SECONDS = 10.0
BUSY_CPU_BUDGET = 0.10
START_LIMIT_S = 120.0

ROOT = Path(__file__).resolve().parent.parent


def window_of_a_second() -> Window:
    """Aggregate what a device records in a second, as the agent does."""
    generator = np.random.default_rng(3)
    records = np.zeros(RECORDS_PER_SECOND, DTYPES[ActivityKind.Kernel])
    records["kind"] = ActivityKind.Kernel
    records["start_ns"] = 10**18 + np.arange(RECORDS_PER_SECOND) * 5_000
    records["end_ns"] = records["start_ns"] + generator.integers(500, 4_500, RECORDS_PER_SECOND)
    records["name"] = generator.integers(1, OPERATORS + 1, RECORDS_PER_SECOND)
    names = ("", *(f"MatMulV3_{number}" for number in range(OPERATORS)))
    statistics = WindowStatistics()
    statistics.add(Batch(ActivityKind.Kernel, records, names), received=RECORDS_PER_SECOND)
    return statistics.close(0, 10**18, 10**18 + 10**9, -1)


class LightAgent:
    """One DEALER that registers as a process and answers commands at once."""

    def __init__(self, context: zmq.Context[Any], endpoint: Endpoint, number: int) -> None:
        self._pid = 100_000 + number
        self._number = number
        self.session_id = ""
        self.seq = 0
        self.windows = 0
        self.heartbeat_s = 0.0
        """0 until it is registered."""
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        assert endpoint.client_keys is not None
        self.socket.curve_serverkey = endpoint.server_public_key
        self.socket.curve_publickey = endpoint.client_keys.public
        self.socket.curve_secretkey = endpoint.client_keys.secret
        self.socket.connect(endpoint.url)
        process = ProcessInfo("bench", self._pid, 1, rank=number, command="bench")
        self._send(Hello(msmon.__version__, "agent", process))

    def receive(self) -> None:
        """Take what has arrived."""
        while self.socket.poll(0):
            envelope = decode(self.socket.recv_multipart(), sender="daemon", receiver="agent")
            message = envelope.message
            if isinstance(message, Welcome):
                self.heartbeat_s = message.heartbeat_s
                self.heartbeat()
            elif isinstance(message, Command):
                self._obey(message, envelope.message_id)
            elif isinstance(message, Refused):
                raise SystemExit(f"agent {self._number}: {message.reason}")

    def heartbeat(self) -> None:
        """Send the status that a process of a real job has."""
        counts = Counts({"Kernel": self.windows * RECORDS_PER_SECOND})
        state = "monitoring" if self.session_id else "idle"
        self._send(Status(state, 1, 0.1, self.session_id, counts=counts))

    def send_window(self, window: Window, payload: list[bytes]) -> None:
        """Send a window of the running session."""
        self.seq += 1
        plain = {**window.header_fields(), "index": self.windows}
        self.windows += 1
        self._send(WindowReport(self.session_id, self.seq, **plain), payload=payload)

    def _obey(self, command: Command, message_id: str) -> None:
        if command.action == "monitor.start":
            self.session_id, self.seq = f"{self._pid}-{time.monotonic_ns()}", 1
            self._send(SessionOpened(self.session_id, 1, command.fields, time.time_ns()))
            self._send(Answer(True, "started", "", self.session_id), message_id)
        else:
            ended, self.session_id = self.session_id, ""
            end = SessionEnd(time.time_ns(), "stopped")
            self._send(SessionClosed(ended, self.seq + 1, end))
            self._send(Answer(True, "stopped", "", ended), message_id)

    def _send(self, message: Message, message_id: str = "", payload: Any = ()) -> None:
        self.socket.send_multipart(encode(message, message_id, payload))


def run_agents(first: int, count: int, send_windows: bool) -> None:
    """Be ``count`` agents until killed; heartbeats are spread over their interval."""
    context: zmq.Context[Any] = zmq.Context()
    endpoint = local_endpoint(os.environ)
    agents = [LightAgent(context, endpoint, first + number) for number in range(count)]
    poller = zmq.Poller()
    by_socket = {agent.socket: agent for agent in agents}
    for agent in agents:
        poller.register(agent.socket, zmq.POLLIN)
    window = window_of_a_second()
    payload = window.to_frames()
    turn = 0
    while True:
        for socket, _ in poller.poll(20):
            by_socket[socket].receive()
        interval_s = agents[0].heartbeat_s or 1.0
        due = int(time.monotonic() / interval_s * count)
        for number in range(turn or due, due):
            agent = agents[number % count]
            if agent.heartbeat_s:
                agent.heartbeat()
            if send_windows and agent.session_id:
                for _ in range(round(interval_s)):
                    agent.send_window(window, payload)
        turn = due


class Fleet:
    """A daemon and agents that are its only clients."""

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
            self._start(__file__, "--agents", str(first), str(count), str(int(send_windows)))
        self._await(lambda: self._live() >= agents, f"{agents} agents to register")

    def request(self, message: Message) -> Reply:
        """Send one request to the daemon and return the reply."""
        with Client(local_endpoint(self._environ), START_LIMIT_S) as client:
            reply: Reply = client.request(message, START_LIMIT_S)
            return reply

    def seconds_of(self, action: str, **fields: Any) -> float:
        """Return how long a command to all agents takes."""
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
    if "--agents" in sys.argv:
        first, count, send_windows = map(int, sys.argv[2:])
        run_agents(first, count, bool(send_windows))
    measure_idle(int(sys.argv[1]) if len(sys.argv) > 1 else AGENTS, ratio)
    measure_busy(ratio)


if __name__ == "__main__":
    main()
