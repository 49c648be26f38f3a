"""Messages to frames and back: one validation, derived from the messages' type hints.

Frames are ``[header: msgpack map] [payload frames…]``. The header holds ``v``
(protocol version), ``type``, ``id`` and the message's own fields. Whatever comes
in is checked for size, depth, unknown fields and types before a message is made.
"""

from __future__ import annotations

import dataclasses
import enum
import numbers
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, NamedTuple, Optional

import msgpack

from msmon.bounds import Bound
from msmon.bus import messages
from msmon.bus.messages import (
    MAX_ROWS,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    Message,
    Reply,
    WindowsReply,
)
from msmon.bus.validation import (
    TOLD,
    checker_of_fields,
    default_of,
    hints_of,
    prose_bound,
    shortened,
)
from msmon.errors import ProtocolMismatch, UsageError

MAX_HEADER_BYTES = 64 << 10
MAX_REPLY_HEADER_BYTES = 16 << 20
"""Only a daemon's answer may be that large: it has a row per process."""
MAX_PAYLOAD_FRAME_BYTES = 16 << 20
MAX_PAYLOAD_FRAMES = 8
MAX_FRAMES = 1 + MAX_PAYLOAD_FRAMES
MAX_ID_CHARACTERS = 64

MESSAGE_TYPES: dict[str, type[Message]] = {
    kind.TYPE: kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and issubclass(kind, Message) and kind.TYPE
}


_LONG = (Reply, WindowsReply)
"""Answers with a row for each of many processes or windows."""

_CHECKERS = {kind: checker_of_fields(kind) for kind in MESSAGE_TYPES.values()}
"""Made when this module is loaded, so that a field without a bound is found at once."""


@dataclass(frozen=True)
class Envelope:
    """A message with what surrounds it. ``message_id`` ties an answer to its request."""

    message: Message
    message_id: str = ""
    payload: tuple[bytes, ...] = ()
    minor: int = PROTOCOL_MINOR
    """The minor version of the protocol that its sender speaks."""


def encode(message: Message, message_id: str = "", payload: Sequence[bytes] = ()) -> list[bytes]:
    """Return the frames of a message. Raises UsageError when it exceeds a limit."""
    header = {
        "v": [PROTOCOL_MAJOR, PROTOCOL_MINOR],
        "type": message.TYPE,
        "id": message_id,
        **_plain_fields(message),
    }
    packed: bytes = msgpack.packb(header, default=plain, unicode_errors="surrogateescape")
    limit = MAX_REPLY_HEADER_BYTES if isinstance(message, _LONG) else MAX_HEADER_BYTES
    if len(packed) > limit:
        if isinstance(message, Reply) and message.rows:
            return encode(_with_fewer_rows(message, len(packed)), message_id, payload)
        raise UsageError(f"a {message.TYPE!r} message of {len(packed)} bytes is too large")
    _check_payload(payload)
    return [packed, *payload]


def _with_fewer_rows(reply: Reply, packed_bytes: int) -> Reply:
    """Return a reply that is about as long as one may be, and says how many rows it lacks."""
    kept = len(reply.rows) * MAX_REPLY_HEADER_BYTES * 9 // (packed_bytes * 10)
    lacking = f"{len(reply.rows) - kept} more do not fit into one answer: select fewer processes"
    text = f"{reply.text}; {lacking}" if reply.text else lacking
    return dataclasses.replace(reply, rows=reply.rows[:kept], text=text)


def decode(
    frames: Sequence[bytes], sender: str = "the sender", receiver: str = "the receiver"
) -> Envelope:
    """Return the message in ``frames``; ``sender`` and ``receiver`` only word the errors.

    Raises ProtocolMismatch for another major version, saying which side to upgrade,
    and UsageError for everything else that is wrong, naming the field.
    """
    if not frames:
        raise UsageError("a message without frames")
    header = _unpack(frames[0])
    version = _version_of(header, sender, receiver)
    kind = _type_of(header, version, sender, receiver)
    if len(frames[0]) > MAX_HEADER_BYTES and kind not in _LONG:
        raise UsageError(f"a {kind.TYPE!r} message of {len(frames[0])} bytes is too large")
    message_id = header.pop("id", "")
    if not isinstance(message_id, str) or len(message_id) > MAX_ID_CHARACTERS:
        raise UsageError(f"message {kind.TYPE!r}: field 'id' is not a short text")
    payload = tuple(frames[1:])
    _check_payload(payload)
    try:
        message = _CHECKERS[kind](header, "")
    except UsageError as error:
        hint = _upgrade_hint(version, sender, receiver)
        raise UsageError(f"message {kind.TYPE!r}: {error.message}", hint) from None
    if isinstance(message, Reply):
        message = _telling_of_unread_rows(message, header)
    return Envelope(message, message_id, payload, version[1])


def _telling_of_unread_rows(reply: Reply, header: dict[str, Any]) -> Reply:
    """Return a reply whose text says how many of its rows were wrong and are left out."""
    unread = min(len(header.get("rows", ())), MAX_ROWS) - len(reply.rows)
    if not unread:
        return reply
    told = f"unreadable rows of the answer that are left out: {unread}"
    return dataclasses.replace(reply, text=f"{reply.text}; {told}" if reply.text else told)


def header_of(frames: Sequence[bytes]) -> dict[str, Any]:
    """Return the plain header of a message that may not be valid; {} if it can't be read."""
    try:
        return _unpack(frames[0]) if frames else {}
    except UsageError:
        return {}


def message_id_of(frames: Sequence[bytes]) -> str:
    """Return the id of a message that may not be valid otherwise; empty if it has none."""
    message_id = header_of(frames).get("id")
    valid = isinstance(message_id, str) and len(message_id) <= MAX_ID_CHARACTERS
    return str(message_id) if valid else ""


class _Sent(NamedTuple):
    """How one field of a class is written."""

    name: str
    default: Any
    prose: Optional[Bound]
    """Its bound, where it is a text that may be cut."""


_layouts: dict[type[Any], list[_Sent]] = {}


def _layout(cls: type[Any]) -> list[_Sent]:
    if cls not in _layouts:
        hints = hints_of(cls)
        _layouts[cls] = [
            _Sent(item.name, default_of(item), prose_bound(hints[item.name]))
            for item in fields(cls)
        ]
    return _layouts[cls]


def _plain_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a message, or of a dataclass in one, that say something.

    A field with its default is left out: a side that is older, and refuses fields it doesn't know,
    then meets a new field only where it matters. Prose is cut to its bound.
    """
    if isinstance(value, TOLD):
        return as_fields(value)
    sent = {}
    for name, default, prose in _layout(type(value)):
        item = getattr(value, name)
        if item != default:
            sent[name] = item if prose is None else shortened(item, prose)
    return sent


def as_fields(value: Any) -> dict[str, Any]:
    """Return every field of a row, as the wire and ``--json`` have it: see ``bus.rows``."""
    sent = {}
    for name, default, prose in _layout(type(value)):
        item = getattr(value, name)
        if item is None and default is not MISSING:
            continue
        if prose is not None and item is not None:
            item = shortened(item, prose)
        sent[name] = {} if item is None else item
    return sent


def plain(value: Any) -> Any:
    """Turn what msgpack can't pack into what it can: dataclasses and numpy numbers."""
    if is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} can't be sent")


def _unpack(header: bytes) -> dict[str, Any]:
    if len(header) > MAX_REPLY_HEADER_BYTES:
        raise UsageError(f"a header of {len(header)} bytes is too large")
    try:
        unpacked = msgpack.unpackb(
            header, unicode_errors="surrogateescape", max_bin_len=0, max_ext_len=0
        )
    except (ValueError, msgpack.UnpackException):  # all that msgpack raises for bad input
        raise UsageError("the header is not a msgpack map") from None
    if not isinstance(unpacked, dict) or not all(isinstance(key, str) for key in unpacked):
        raise UsageError("the header is not a msgpack map")
    return unpacked


def _version_of(header: dict[str, Any], sender: str, receiver: str) -> tuple[int, int]:
    version = header.pop("v", None)
    if (
        not isinstance(version, list)
        or len(version) != 2
        or type(version[0]) is not int
        or type(version[1]) is not int
        or min(version) < 0
    ):
        raise UsageError("field 'v' is not a protocol version")
    major, minor = version
    if major != PROTOCOL_MAJOR:
        raise ProtocolMismatch(
            f"{sender} speaks protocol {major}.{minor}, "
            f"{receiver} speaks {PROTOCOL_MAJOR}.{PROTOCOL_MINOR}",
            f"upgrade msmon on the side of {sender if major < PROTOCOL_MAJOR else receiver}",
        )
    return major, minor


def _type_of(
    header: dict[str, Any], version: tuple[int, int], sender: str, receiver: str
) -> type[Message]:
    name = header.pop("type", None)
    kind = MESSAGE_TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UsageError(
            f"unknown message type {str(name)[:40]!r}", _upgrade_hint(version, sender, receiver)
        )
    return kind


def _upgrade_hint(version: tuple[int, int], sender: str, receiver: str) -> str:
    own = (PROTOCOL_MAJOR, PROTOCOL_MINOR)
    if version == own:
        return ""
    older = sender if version < own else receiver
    return (
        f"{sender} speaks protocol {version[0]}.{version[1]}, {receiver} {own[0]}.{own[1]}: "
        f"upgrade msmon on the side of {older}"
    )


def _check_payload(payload: Sequence[bytes]) -> None:
    if len(payload) > MAX_PAYLOAD_FRAMES:
        raise UsageError(f"{len(payload)} payload frames are too many")
    if any(len(frame) > MAX_PAYLOAD_FRAME_BYTES for frame in payload):
        raise UsageError(f"a payload frame is larger than {MAX_PAYLOAD_FRAME_BYTES} bytes")
