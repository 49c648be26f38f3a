"""A daemon's socket for tests of the agent: real CURVE, no broker behind it.

``daemon``        a :class:`ScriptedDaemon` in a runtime directory of its own
``job_environ``   the environment of a job that finds it, with the C library double
``job``           starts a Python program in that environment
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
from fixtures.waiting import poll_until

from msmon.bus.codec import Envelope, decode, encode
from msmon.bus.keys import KeyPair, key_file_text
from msmon.bus.messages import (
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    Acknowledged,
    Answer,
    Command,
    Hello,
    Message,
    Records,
    SessionClosed,
    SessionOpened,
    Status,
    Welcome,
    WindowReport,
)

DEADLINE_S = 8.0
END_LIMIT_S = 60.0
"""An interpreter that imports numpy takes 10 s where all cores are busy."""


class ScriptedDaemon:
    """Greets, keeps what it receives, and sends what the test says.

    ``acknowledging`` decides whether stream messages are acknowledged as they come, ``refuses``
    whether a message is answered by a refusal instead. ``minor`` is the minor version of the
    protocol that it says it speaks.
    """

    def __init__(self, directory: Path, heartbeat_s: float = 0.2) -> None:
        self.directory = directory
        self.received: list[Envelope] = []
        self.acknowledging = True
        self.refuses: Callable[[Message], Message | None] = lambda _: None
        self.minor = PROTOCOL_MINOR
        self._heartbeat_s = heartbeat_s
        self._keys = KeyPair.generate()
        self._context: zmq.Context[Any] | None = None
        self._commands = 0
        self._route = b""

    def start(self) -> None:
        self._context = zmq.Context()
        router = self._context.socket(zmq.ROUTER)
        router.linger = 0
        router.curve_server = True
        router.curve_secretkey = self._keys.secret
        router.curve_publickey = self._keys.public
        public = key_file_text({"public-key": self._keys.public.decode()})
        (self.directory / "daemon.pub").write_text(public)
        router.bind(f"ipc://{self.directory}/daemon.sock")
        inbox = self._context.socket(zmq.PULL)
        inbox.bind("inproc://to-agent")
        self._outbox = self._context.socket(zmq.PUSH)
        self._outbox.connect("inproc://to-agent")
        self._thread = threading.Thread(target=self._serve, args=(router, inbox), daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._context is not None

    def stop(self) -> None:
        """Go away at once, as after SIGKILL: the socket file stays."""
        self._outbox.send(b"")
        self._thread.join(DEADLINE_S)
        self._outbox.close(0)
        assert self._context is not None
        self._context.destroy(linger=0)
        self._context = None

    def _serve(self, router: zmq.Socket[Any], inbox: zmq.Socket[Any]) -> None:
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(inbox, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if inbox in ready:
                frames = inbox.recv_multipart()
                if frames == [b""]:
                    break
                router.send_multipart([self._route, *frames])
            if router in ready:
                self._route, *frames = router.recv_multipart()
                self._take(router, decode(frames))
        router.close(0)
        inbox.close(0)

    def _take(self, router: zmq.Socket[Any], envelope: Envelope) -> None:
        self.received.append(envelope)
        message = envelope.message
        answer = self.refuses(message) or None
        if answer is not None:
            pass
        elif isinstance(message, Hello):
            answer = Welcome("test", "host", os.getpid(), self._heartbeat_s)
        elif self.acknowledging and hasattr(message, "seq"):
            answer = Acknowledged(message.session_id, message.seq)
        if answer is not None:
            header = {**msgpack.unpackb(encode(answer)[0]), "v": [PROTOCOL_MAJOR, self.minor]}
            router.send_multipart([self._route, msgpack.packb(header)])

    def send(self, message: Message, message_id: str = "") -> None:
        self._outbox.send_multipart(encode(message, message_id))

    def send_fields(self, kind: str, message_id: str, **fields: Any) -> None:
        """Send a message that need not be valid."""
        header = {"v": [PROTOCOL_MAJOR, PROTOCOL_MINOR], "type": kind, "id": message_id, **fields}
        self._outbox.send_multipart([msgpack.packb(header)])

    def command(self, action: str, **fields: Any) -> Answer:
        """Send a command and return the answer to it."""
        return self.answer_to(self.command_later(action, **fields))

    def command_later(self, action: str, **fields: Any) -> str:
        """Send a command without waiting; returns its id."""
        self._commands += 1
        message_id = f"c{self._commands}"
        self.send(Command(action, fields), message_id)
        return message_id

    def answer_to(self, message_id: str, limit_s: float = 12.0) -> Answer:
        def find() -> Answer | None:
            for envelope in list(self.received):
                if envelope.message_id == message_id and isinstance(envelope.message, Answer):
                    return envelope.message
            return None

        return poll_until(find, f"answer to {message_id}", limit_s)

    def of_type(self, kind: type[Any]) -> list[Any]:
        return [item.message for item in list(self.received) if isinstance(item.message, kind)]

    def await_hello(self, count: int = 1) -> Hello:
        return poll_until(lambda: self.of_type(Hello)[count - 1 :], f"hello {count}")[0]

    def await_status(self, matches: Callable[[Status], bool], what: str) -> Status:
        """Return the next status from now on that matches."""
        seen = len(self.received)

        def find() -> list[Status]:
            fresh = [item.message for item in self.received[seen:]]
            return [item for item in fresh if isinstance(item, Status) and matches(item)]

        return poll_until(find, what)[0]

    def await_closed(self, count: int = 1) -> SessionClosed:
        return poll_until(lambda: self.of_type(SessionClosed)[count - 1 :], "session closed")[0]

    def sessions(self) -> list[SessionOpened]:
        return self.of_type(SessionOpened)

    def records_of(self, session_id: str) -> int:
        return sum(item.count for item in self.of_type(Records) if item.session_id == session_id)

    def windows_of(self, session_id: str) -> list[WindowReport]:
        return [item for item in self.of_type(WindowReport) if item.session_id == session_id]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ScriptedDaemon]:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    scripted = ScriptedDaemon(directory)
    scripted.start()
    yield scripted
    if scripted.is_running:
        scripted.stop()


@pytest.fixture
def job_environ(cann_environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    environ = dict(cann_environ)
    environ["MSMON_RUNTIME_DIR"] = str(tmp_path / "run")
    environ["MSMONITOR_LOG_PATH"] = str(tmp_path / "log")
    environ["LD_LIBRARY_PATH"] = f"{environ['ASCEND_HOME_PATH']}/lib64"
    environ["PYTHONWARNINGS"] = "error"
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "MSMONITOR_USE_DAEMON", "KINETO_USE_DAEMON"):
        environ.pop(name, None)
    return environ


_PRELUDE = """
import os, signal, sys, threading, time
import msmon
def stopped():
    return sys.stdin.readline() == ""
"""

_LIBRARY_PRELUDE = """
import ctypes
double = ctypes.CDLL(os.environ["ASCEND_HOME_PATH"] + "/lib64/libmspti.so")
MARKER, KERNEL, API, COMMUNICATION = 1, 2, 3, 9
def record(kind, count):
    double.double_record(ctypes.c_uint32(kind), ctypes.c_uint64(count))
def record_for_ever(kind, per_second):
    kinds = (ctypes.c_uint32 * 1)(kind)
    double.double_start_recording(ctypes.c_size_t(1), ctypes.c_uint64(per_second), kinds,
                                  ctypes.c_size_t(1), ctypes.c_uint64(0))
"""


class Job:
    """A program that runs until its standard input is closed or it ends by itself."""

    def __init__(self, program: str, environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self, text: str = "") -> None:
        """Let the program read one line."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def output(self) -> str:
        """Return the next line that the program prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, limit_s: float = END_LIMIT_S) -> tuple[int, str, str]:
        """Close standard input and wait; returns exit code, output, errors."""
        out, errors = self.process.communicate(timeout=limit_s)
        return self.process.returncode, out, errors


@pytest.fixture
def job(job_environ: dict[str, str]) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(program: str, with_library: bool = True, **environ: str) -> Job:
        prelude = _PRELUDE + (_LIBRARY_PRELUDE if with_library else "")
        jobs.append(Job(prelude + program, {**job_environ, **environ}))
        return jobs[-1]

    yield start
    for started in jobs:
        started.process.kill()
        started.process.communicate()
