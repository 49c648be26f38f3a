"""Real daemons in processes of their own, and an agent that follows a script.

``daemon_directory``  a short-lived directory whose path is short enough for a socket
``daemon``            a running msmon-daemon with fast heartbeats; ``restart`` and ``kill`` it
``agent``             makes agents: a thread with a DEALER that says hello, sends heartbeats,
                      answers commands by script and remembers what it got
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from msmon.bus import sockets
from msmon.bus.client import Client
from msmon.bus.codec import decode, encode
from msmon.bus.endpoints import Endpoint, local_endpoint
from msmon.bus.messages import (
    Acknowledged,
    Answer,
    Command,
    Hello,
    Message,
    MonitorRequest,
    Reply,
    Selection,
    SessionOpened,
    Status,
    StatusRequest,
    Welcome,
)
from msmon.sessions import ProcessInfo

HEARTBEAT_S = 0.1
DEADLINE_S = 8.0


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S):
    """Return the first true value of ``condition``."""
    end_s = time.monotonic() + deadline_s
    while time.monotonic() < end_s:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {deadline_s} s: {what}")


@pytest.fixture
def until():
    return wait_until


@pytest.fixture
def daemon_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="msmon-"))
    yield directory
    shutil.rmtree(directory)


class Daemon:
    """One msmon-daemon process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runtime = directory / "run"
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MSMON")},
            "MSMON_RUNTIME_DIR": str(self.runtime),
            "MSMON_KEYS_DIR": str(directory / "keys"),
        }
        self.log = directory / "daemon.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.arguments: tuple[str, ...] = ()

    def start(self, *arguments: str, await_ready: bool = True) -> None:
        self.arguments = arguments
        with self.log.open("ab") as log:
            seen = log.tell()
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-W", "error", "-m", "msmon.commands.daemon"),
                    *("--heartbeat-s", str(HEARTBEAT_S), *arguments),
                ],
                env=self.environ,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        if await_ready:
            wait_until(
                lambda: (
                    b"msmon-daemon ready" in self.log.read_bytes()[seen:]
                    or self.process.poll() is not None
                ),
                "the daemon is ready",
            )
            assert self.process.poll() is None, self.log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(5.0)

    def restart(self) -> None:
        self.kill()
        self.start(*self.arguments)

    def endpoint(self) -> Endpoint:
        return local_endpoint(self.environ, "--insecure" in self.arguments)

    def ask(self, message: Message, timeout_s: float = 5.0) -> Reply:
        with Client(self.endpoint(), timeout_s) as client:
            return client.request(message)

    def command(self, action: str, fields: dict | None = None, **selection) -> Reply:
        request = MonitorRequest(action, fields or {}, Selection(**selection), 2.0)
        return self.ask(request)

    def rows(self) -> list[dict]:
        return self.ask(StatusRequest()).rows

    def row(self, pid: int) -> dict:
        return next((row for row in self.rows() if row["pid"] == pid), {})


@pytest.fixture
def daemon(daemon_directory: Path) -> Iterator[Daemon]:
    daemon = Daemon(daemon_directory)
    yield daemon
    if daemon.process is not None and daemon.process.poll() is None:
        daemon.kill()
    log = daemon.log.read_text() if daemon.log.exists() else ""
    print(log)
    assert "Traceback" not in log


@pytest.fixture
def in_state(daemon: Daemon) -> Callable[[int, str], dict]:
    """Wait until the daemon lists a process in a state; return its row."""

    def wait(pid: int, state: str) -> dict:
        def row() -> dict | None:
            found = daemon.row(pid)
            return found if found.get("state") == state else None

        return wait_until(row, f"process {pid} is {state}")

    return wait


class ScriptedAgent:
    """An agent that says hello and sends heartbeats until it is silenced.

    ``answers``: action → Answer, None for no answer, or a callable that makes it.
    ``received`` holds all messages of the daemon.
    """

    def __init__(self, endpoint: Callable[[], Endpoint], info: ProcessInfo) -> None:
        self.info = info
        self.status = Status("idle")
        self.answers: dict[str, Answer | Callable[[Command], Answer] | None] = {}
        self.received: list[Message] = []
        self.welcomes = 0
        self.silent = False
        self._endpoint = endpoint
        self._outbox: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        wait_until(lambda: self.welcomes, "the agent is welcome")

    def send(self, message: Message, payload: tuple[bytes, ...] = ()) -> None:
        self._outbox.put(encode(message, payload=payload))

    def send_frames(self, frames: list[bytes]) -> None:
        self._outbox.put(frames)

    def got(self, kind: type[Message]) -> list:
        return [message for message in list(self.received) if isinstance(message, kind)]

    def acknowledged(self, session_id: str) -> int:
        acks = [ack.seq for ack in self.got(Acknowledged) if ack.session_id == session_id]
        return max(acks, default=0)

    def open_session(self, session_id: str, settings: dict | None = None) -> None:
        self.send(SessionOpened(session_id, 1, settings or {}, time.time_ns()))

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        context = zmq.Context()
        while not self._ended.is_set():
            dealer, watch = sockets.connect(context, self._endpoint())
            self._serve(dealer, watch)
            watch.close()
            dealer.close()
        context.term()

    def _serve(self, dealer, watch) -> None:
        """Serve one connection, until it is lost."""
        beat_s, connected = 0.0, False
        while not self._ended.is_set():
            for event in watch.events():
                if event.state != "connected":
                    return
                dealer.send_multipart(encode(Hello("0", "agent", self.info), "h"))
                connected = True
            if connected and not self.silent:
                if time.monotonic() - beat_s > HEARTBEAT_S:
                    beat_s = time.monotonic()
                    dealer.send_multipart(encode(self.status))
                while not self._outbox.empty():
                    dealer.send_multipart(self._outbox.get())
            if dealer.poll(5):
                self._take(dealer, decode(dealer.recv_multipart()))

    def _take(self, dealer, envelope) -> None:
        self.received.append(envelope.message)
        self.welcomes += isinstance(envelope.message, Welcome)
        if isinstance(envelope.message, Command):
            answer = self.answers.get(envelope.message.action, Answer(True, "done"))
            if callable(answer):
                answer = answer(envelope.message)
            if answer is not None:
                dealer.send_multipart(encode(answer, envelope.message_id))


@pytest.fixture
def agent(daemon: Daemon) -> Iterator[Callable[..., ScriptedAgent]]:
    made: list[ScriptedAgent] = []

    def make(pid: int, **fields) -> ScriptedAgent:
        info = ProcessInfo(**{"host": "node", "pid": pid, "start_time": 1, **fields})
        made.append(ScriptedAgent(daemon.endpoint, info))
        return made[-1]

    yield make
    for one in made:
        one.end()
