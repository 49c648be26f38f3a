"""A sink in a process of its own: the CPU-heavy file formats, away from the broker's lock.

Started as ``python -m msmon.daemon.outputs.process FD CLASS``. It answers one call at a time
over an inherited socket, ignores the signals that end its parent, and ends
when the parent's side closes; what was not committed then is not written.
"""

from __future__ import annotations

import importlib
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from msmon.daemon.outputs.calls import DirectCalls
from msmon.errors import MsmonError, SinkError, UsageError
from msmon.sessions import Gap, SessionEnd, SessionInfo
from msmon.sinks.base import CommitFailed, SessionOutput, Sink

_CLOSE_TIMEOUT_S = 5.0


class ProcessCalls:
    """Calls to a sink in a child process, which is started again when it has died."""

    def __init__(self, sink_class: type[Sink], options: dict[str, Any]) -> None:
        self._class_path = f"{sink_class.__module__}:{sink_class.__qualname__}"
        self._name = sink_class.NAME
        self._options = options
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self.generation = 0
        self._start()

    def open_session(self, session: SessionInfo) -> SessionOutput:
        output: SessionOutput = self._call("open_session", session)
        return output

    def write_records(self, session_id: str, seq: int, kind: int, payload: list[bytes]) -> None:
        self._call("write_records", session_id, seq, kind, payload)

    def write_window(
        self, session_id: str, seq: int, fields: dict[str, Any], payload: list[bytes]
    ) -> None:
        self._call("write_window", session_id, seq, fields, payload)

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        self._call("write_gap", session_id, seq, gap)

    def write_note(self, session_id: str, seq: int, key: str, value: str) -> None:
        self._call("write_note", session_id, seq, key, value)

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        self._call("close_session", session_id, seq, end)

    def forget_session(self, session_id: str) -> None:
        self._call("forget_session", session_id)

    def commit(self) -> Mapping[str, tuple[str, ...]] | None:
        changed: Mapping[str, tuple[str, ...]] | None = self._call("commit")
        return changed

    def close(self) -> None:
        """Let the child release everything and wait for its end."""
        try:
            self._call("close")
        finally:
            self._reap()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), self._class_path],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._connection = Connection(ours.detach())
        self._connection.send(self._options)

    def _call(self, method: str, *arguments: Any) -> Any:
        if self._connection is None:
            self._start()
            self.generation += 1
            raise SinkError(f"the process of output {self._name} was started again")
        try:
            self._connection.send((method, arguments))
            error, value = self._connection.recv()
        except (EOFError, OSError) as cause:
            status = self._reap()
            raise SinkError(f"the process of output {self._name} ended ({status})") from cause
        if error is not None:
            raise error
        return value

    def _reap(self) -> str:
        """Close our side and wait for the child. Returns how it ended."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._child is None:
            return "not running"
        try:
            code = self._child.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        self._child = None
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def load_class(path: str) -> type[Sink]:
    """Import the sink class "module:Class"."""
    module, _, name = path.partition(":")
    sink_class: type[Sink] = getattr(importlib.import_module(module), name)
    return sink_class


def serve(connection: Connection, sink_class: type[Sink]) -> None:
    """Carry out calls until ``close`` or until the other side is gone."""
    calls = DirectCalls(sink_class(**connection.recv()))
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        error: Exception | None = None
        value = None
        try:
            value = getattr(calls, method)(*arguments)
        except (CommitFailed, SinkError, UsageError, ValueError) as failure:
            error = failure
        except OSError as failure:
            error = SinkError(str(failure))
        except Exception as failure:  # noqa: BLE001 - a sink's bug must reach the daemon as text
            error = MsmonError(f"{type(failure).__name__}: {failure}")
        try:
            connection.send((error, value))
        except (BrokenPipeError, ConnectionResetError):
            return
        if method == "close":
            return


def main() -> None:
    """Entry of the child process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])), load_class(sys.argv[2]))


if __name__ == "__main__":
    main()
