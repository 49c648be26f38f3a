"""What an output process sends to the daemon, and how little of it is believed.

The daemon may be root while the process works for any user. So requests to it are pickled,
but nothing that comes back is: plain msgpack, checked field by field, bounded in size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

import msgpack

from msmon.daemon.outputs.delivery import Answer, Committed
from msmon.errors import MsmonError, SinkError, UsageError
from msmon.sinks.base import SessionOutput

MAX_BYTES = 8 << 20
"""The longest message of a process: the progress of a session is the longest thing in it."""

MAX_TEXT = 4096


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
