"""Messages to frames and back: one validation, derived from the messages' type hints.

Frames are ``[header: msgpack map] [payload frames…]``. The header holds ``v``
(protocol version), ``type``, ``id`` and the message's own fields. Whatever comes
in is checked for size, depth, unknown fields and types before a message is made.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any

import msgpack

from msmon.bus import messages
from msmon.bus.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, Message, Reply
from msmon.bus.schema import checker_of_fields
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


@dataclass(frozen=True)
class Envelope:
    """A message with what surrounds it. ``message_id`` ties an answer to its request."""

    message: Message
    message_id: str = ""
    payload: tuple[bytes, ...] = ()


def encode(message: Message, message_id: str = "", payload: Sequence[bytes] = ()) -> list[bytes]:
    """Return the frames of a message. Raises UsageError when it exceeds a limit."""
    header = {
        "v": [PROTOCOL_MAJOR, PROTOCOL_MINOR],
        "type": message.TYPE,
        "id": message_id,
        **_plain_fields(message),
    }
    packed: bytes = msgpack.packb(header, default=_plain, unicode_errors="surrogateescape")
    limit = MAX_REPLY_HEADER_BYTES if isinstance(message, Reply) else MAX_HEADER_BYTES
    if len(packed) > limit:
        raise UsageError(f"a {message.TYPE!r} message of {len(packed)} bytes is too large")
    _check_payload(payload)
    return [packed, *payload]


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
    if len(frames[0]) > MAX_HEADER_BYTES and kind is not Reply:
        raise UsageError(f"a {kind.TYPE!r} message of {len(frames[0])} bytes is too large")
    message_id = header.pop("id", "")
    if not isinstance(message_id, str) or len(message_id) > MAX_ID_CHARACTERS:
        raise UsageError(f"message {kind.TYPE!r}: field 'id' is not a short text")
    payload = tuple(frames[1:])
    _check_payload(payload)
    try:
        message = checker_of_fields(kind)(header, "")
    except UsageError as error:
        hint = _upgrade_hint(version, sender, receiver)
        raise UsageError(f"message {kind.TYPE!r}: {error.message}", hint) from None
    return Envelope(message, message_id, payload)


def message_id_of(frames: Sequence[bytes]) -> str:
    """Return the id of a message that may not be valid otherwise; empty if it has none."""
    try:
        message_id = _unpack(frames[0]).get("id") if frames else None
    except UsageError:
        return ""
    valid = isinstance(message_id, str) and len(message_id) <= MAX_ID_CHARACTERS
    return str(message_id) if valid else ""


def _plain_fields(value: Any) -> dict[str, Any]:
    """Return the fields that say something.

    What has its default is left out: a side that is older, and doesn't know a field, only
    meets it (and refuses it) where it matters.
    """
    return {
        item.name: getattr(value, item.name)
        for item in fields(value)
        if getattr(value, item.name) != _default(item)
    }


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _plain(value: Any) -> Any:
    """Turn what msgpack can't pack into what it can: dataclasses and numpy numbers."""
    if is_dataclass(value):
        return _plain_fields(value)
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
        or not all(type(number) is int and number >= 0 for number in version)
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
