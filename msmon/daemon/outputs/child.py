"""The inside of an output process: one sink, with the rights of one user.

The module :mod:`process <msmon.daemon.outputs.process>` starts it as a fresh interpreter that
inherits one socket and nothing else. It imports the sink, takes on its rights for good, and
only then makes the sink and answers requests, one at a time. It ends when the daemon closes the
socket or dies. What was not committed by then is not in the files; the agent still has it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import os
import pickle
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from msmon.daemon.outputs.child_answers import Done, Failed, FromProcess, Keep, Logged, encode
from msmon.daemon.outputs.delivery import Opening, Request
from msmon.daemon.outputs.rights import Limits, Rights, restrict
from msmon.errors import SinkError
from msmon.sinks.base import Progress, Sink


@dataclass(frozen=True)
class Beginning:
    """The first message to the process. ``sink``: "module:Class"."""

    sink: str
    options: dict[str, Any]
    rights: Rights | None
    limits: Limits | None
    """None: those of the daemon."""
    parent: int


class _Port:
    """The socket to the daemon."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: FromProcess) -> None:
        """Send a message; ends the process when the daemon is gone."""
        try:
            self._connection.send_bytes(encode(message))
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)

    def receive(self) -> Any:
        """Return the next object that the daemon sent; ends the process when it is gone."""
        try:
            return pickle.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            os._exit(0)


class _SentProgress(Progress):
    """A session's progress, stored by the daemon."""

    def __init__(self, port: _Port, session_id: str, value: bytes) -> None:
        super().__init__(value)
        self._port = port
        self._session_id = session_id

    def keep(self, value: bytes) -> None:
        self._port.send(Keep(self._session_id, value))
        problem = self._port.receive()
        if problem:
            raise SinkError(problem)
        super().keep(value)


class _SentLog(logging.Handler):
    """Log lines of the sink, written by the daemon."""

    def __init__(self, port: _Port) -> None:
        super().__init__(logging.WARNING)
        self._port = port

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a wrong format costs the line only
            self._port.send(Logged(record.levelno, record.getMessage()))


def load_class(path: str) -> type[Sink]:
    """Import the sink class "module:Class"."""
    module, _, name = path.partition(":")
    sink_class: type[Sink] = getattr(importlib.import_module(module), name)
    return sink_class


def _begin(port: _Port) -> Sink:
    beginning: Beginning = port.receive()
    sink_class = load_class(beginning.sink)
    restrict(beginning.rights, beginning.limits, beginning.parent)
    return sink_class(**beginning.options)


def _answer(port: _Port, sink: Sink, request: Request) -> FromProcess:
    if isinstance(request, Opening):
        session_id = request.session.session_id
        progress = _SentProgress(port, session_id, request.progress.value)
        request = dataclasses.replace(request, progress=progress)
    try:
        return Done(request.apply(sink))
    except Exception as error:  # noqa: BLE001 - a sink's bug must reach the daemon as text
        return Failed(error)


def serve(connection: Connection) -> None:
    """Carry out requests until the daemon sends None."""
    port = _Port(connection)
    logging.getLogger("msmon").addHandler(_SentLog(port))
    try:
        sink = _begin(port)
    except Exception as error:  # noqa: BLE001 - told to the daemon, which tells its callers
        port.send(Failed(error))
        return
    port.send(Done(None))
    while (request := port.receive()) is not None:
        port.send(_answer(port, sink, request))
    sink.close()


def main(descriptor: int) -> None:
    """Entry of the process. The signals that end the daemon are left to the daemon."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve(Connection(descriptor))
