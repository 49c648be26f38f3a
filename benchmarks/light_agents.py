"""Many agents in one process, for ``fleet.py``: ``light_agents.py FIRST COUNT SEND_WINDOWS``.

Each agent is a DEALER socket that speaks the real protocol with the real codec and CURVE, and does
nothing else. FIRST numbers the agents of several processes; SEND_WINDOWS is 1 or 0.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msmon
from msmon.bus.codec import decode, encode
from msmon.bus.endpoints import Endpoint, local_endpoint
from msmon.bus.messages import (
    Answer,
    Command,
    Hello,
    Message,
    Refused,
    SessionClosed,
    SessionOpened,
    Status,
    Welcome,
    WindowReport,
)
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.statistics.window_statistics import WindowStatistics
from msmon.records.window_frames import frames_of
from msmon.records.windows import Window
from msmon.sessions import Counts, ProcessInfo, SessionEnd

RECORDS_PER_SECOND = 200_000
"""Of each agent that sends windows."""
OPERATORS = 60


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
    """A socket that registers as a process and answers commands at once."""

    def __init__(self, context: zmq.Context[Any], endpoint: Endpoint, number: int) -> None:
        self._pid = 100_000 + number
        self._number = number
        self.session_id = ""
        self.seq = 0
        self.windows = 0
        self.heartbeat_s = 0.0
        """The interval that the daemon wants; 0 until the agent is registered."""
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
        """Handle all messages that have arrived."""
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
        """Send a status as a process of a real job does."""
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
    """Run ``count`` agents until the process is killed.

    Their heartbeats are spread over the interval, as those of independent processes are.
    """
    context: zmq.Context[Any] = zmq.Context()
    endpoint = local_endpoint(os.environ)
    agents = [LightAgent(context, endpoint, first + number) for number in range(count)]
    poller = zmq.Poller()
    by_socket = {agent.socket: agent for agent in agents}
    for agent in agents:
        poller.register(agent.socket, zmq.POLLIN)
    window = window_of_a_second()
    payload = frames_of(window)
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


if __name__ == "__main__":
    run_agents(int(sys.argv[1]), int(sys.argv[2]), send_windows=sys.argv[3] == "1")
