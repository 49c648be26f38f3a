"""What an output process sends to the daemon, and how little of it is believed.

The daemon may be root while the process works for any user. So requests to it are pickled,
but nothing that comes back is: plain msgpack, checked field by field, bounded in size and in time.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Union

import msgpack

from msmon.daemon.outputs.delivery import Answer, Committed
from msmon.errors import MsmonError, SinkError, UsageError
from msmon.sinks.base import SessionOutput

MAX_BYTES = 8 << 20
"""The longest message of a process: the progress of a session is the longest thing in it."""

MAX_TEXT = 4096
_LENGTH = struct.Struct("!i")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Done:
    """A request was carried out."""

    answer: Answer


@dataclass(frozen=True)
class Failed:
    """A request failed. ``error`` is a SinkError, UsageError, ValueError or MsmonError."""

    error: Exception


@dataclass(frozen=True)
class Keep:
    """The progress of a session is to be stored; the process waits for an answer."""

    session_id: str
    value: bytes


@dataclass(frozen=True)
class Logged:
    """A line for the daemon's log."""

    level: int
    text: str


FromProcess = Union[Done, Failed, Keep, Logged]

_ERRORS: dict[str, type[Exception]] = {
    "sink": SinkError,
    "usage": UsageError,
    "value": ValueError,
    "other": MsmonError,
}


def encode(message: FromProcess) -> bytes:
    """Return the bytes of a message."""
    packed: bytes = msgpack.packb(_plain(message))
    return packed


def _plain(message: FromProcess) -> list[Any]:
    if isinstance(message, Keep):
        return ["keep", message.session_id, message.value]
    if isinstance(message, Logged):
        return ["log", message.level, _cut(message.text)]
    if isinstance(message, Failed):
        return ["failed", *_plain_error(message.error)]
    answer = message.answer
    if isinstance(answer, SessionOutput):
        return ["opened", list(answer.files), answer.written_seq]
    if isinstance(answer, Committed):
        files = {key: list(paths) for key, paths in answer.files.items()}
        return ["committed", files, {key: _cut(text) for key, text in answer.failed.items()}]
    if isinstance(answer, str):
        return ["path", answer]
    return ["done"]


def _plain_error(error: Exception) -> list[str]:
    if isinstance(error, (SinkError, UsageError)):
        kind = "sink" if isinstance(error, SinkError) else "usage"
        return [kind, _cut(error.message), _cut(error.next_step)]
    if isinstance(error, OSError):
        return ["sink", _cut(str(error)), ""]
    if isinstance(error, ValueError):
        return ["value", _cut(str(error)), ""]
    return ["other", _cut(f"{type(error).__name__}: {error}"), ""]


def decode(packed: bytes) -> FromProcess:
    """Return a message of a process. Raises ValueError for anything that is none."""
    try:
        kind, *fields = msgpack.unpackb(packed)
        message = _message(kind, fields)
    except Exception as error:  # noqa: BLE001 - whatever it sent, it was no message
        raise ValueError(f"no message of an output process: {error}") from None
    if message is None:
        raise ValueError(f"unknown message {kind!r} of an output process")
    return message


def _message(kind: str, fields: list[Any]) -> FromProcess | None:
    if kind == "keep":
        session_id, value = fields
        return Keep(_text(session_id), _bytes(value))
    if kind == "log":
        level, text = fields
        return Logged(_number(level), _text(text))
    if kind == "failed":
        name, *texts = fields
        message, next_step = map(_text, texts)
        error = _ERRORS[name]
        arguments = (message, next_step) if issubclass(error, MsmonError) else (message,)
        return Failed(error(*arguments))
    if kind == "opened":
        files, written_seq = fields
        return Done(SessionOutput(_texts(files), _number(written_seq)))
    if kind == "committed":
        files, failed = fields
        told = {_text(key): _texts(paths) for key, paths in files.items()}
        return Done(Committed(told, {_text(key): _text(why) for key, why in failed.items()}))
    if kind == "path":
        (path,) = fields
        return Done(_text(path))
    return Done(None) if kind == "done" and not fields else None


def _cut(text: str) -> str:
    return text[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()[:MAX_TEXT]


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise ValueError("no text, or too long")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or len(values) > MAX_TEXT:
        raise ValueError("no list, or too long")
    return tuple(map(_text, values))


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("no bytes")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError("no number")
    return value


class Channel:
    """The daemon's end of the socket to an output process. Each call ends by a given time.

    The other end uses a ``Connection`` of ``multiprocessing``, and the frames here are the same.
    But a ``Connection`` waits without limit once a message has begun. A process that was stopped
    in mid-message (SIGSTOP), or that sends a byte now and then, would hold the thread for ever.

    The output's thread makes all calls. ``until_s`` is on the monotonic clock. Then a call raises
    TimeoutError. When the process is gone it raises EOFError or OSError.
    """

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        self._stream = stream

    def send(self, message: bytes, until_s: float) -> None:
        """Send a message."""
        left = memoryview(_LENGTH.pack(len(message)) + message)
        while left:
            self._wait(select.POLLOUT, until_s)
            left = left[os.write(self._stream.fileno(), left) :]

    def receive(self, until_s: float) -> bytes:
        """Return the next message. Raises ValueError if it is longer than ``MAX_BYTES``."""
        (size_bytes,) = _LENGTH.unpack(self._read(_LENGTH.size, until_s))
        if not 0 <= size_bytes <= MAX_BYTES:
            raise ValueError(f"a message of {size_bytes} bytes")
        return self._read(size_bytes, until_s)

    def close(self) -> None:
        """Close the socket."""
        self._stream.close()

    def _read(self, size_bytes: int, until_s: float) -> bytes:
        found = bytearray()
        while len(found) < size_bytes:
            self._wait(select.POLLIN, until_s)
            chunk = os.read(self._stream.fileno(), min(size_bytes - len(found), _CHUNK_BYTES))
            if not chunk:
                raise EOFError
            found += chunk
        return bytes(found)

    def _wait(self, event: int, until_s: float) -> None:
        left_s = until_s - time.monotonic()
        poll = select.poll()
        poll.register(self._stream, event)
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise TimeoutError
