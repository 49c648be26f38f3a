"""What the outputs get of each message of a session's stream."""

from __future__ import annotations

import time

from msmon.bus.messages import (
    GapReport,
    Message,
    Records,
    SessionClosed,
    SessionNote,
    WindowReport,
)
from msmon.daemon.outputs.delivery import (
    BatchDelivery,
    Closing,
    Delivery,
    GapDelivery,
    NoteDelivery,
    WindowDelivery,
)
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.window_frames import exceeds_bounds
from msmon.records.window_header import WindowHeader
from msmon.records.windows import MAX_WINDOW_BYTES
from msmon.sessions import DropStage, Gap

MAX_NOTE_BYTES = 1 << 20
"""The longest note names the ranks of all parallel groups of a job."""

_KNOWN_KINDS = frozenset(int(kind) for kind in ActivityKind)


def delivery_of(message: Message, payload: tuple[bytes, ...]) -> Delivery:
    """Return the delivery for a message other than the opening of a session.

    What can't be passed on, for example a window that is too large, becomes a gap.
    """
    if isinstance(message, Records):
        return _records_delivery(message, payload)
    if isinstance(message, WindowReport):
        if is_too_large(payload):
            reason = "a window of statistics has too many rows"
            kept = dict(message.kept)
            gap = Gap(DropStage.WINDOWS, message.start_ns, message.end_ns, kept, reason)
            return GapDelivery(message.session_id, message.seq, gap)
        header = WindowHeader(**message.header_fields())
        return WindowDelivery(message.session_id, message.seq, header, payload)
    if isinstance(message, GapReport):
        return GapDelivery(message.session_id, message.seq, message.gap)
    if isinstance(message, SessionNote):
        return _note_delivery(message, payload)
    assert isinstance(message, SessionClosed)
    return Closing(message.session_id, message.seq, message.end)


def is_too_large(payload: tuple[bytes, ...]) -> bool:
    """Whether the frames of a window are more than a daemon takes."""
    if sum(map(len, payload)) > MAX_WINDOW_BYTES:
        return True
    return exceeds_bounds(payload)


def _note_delivery(message: SessionNote, payload: tuple[bytes, ...]) -> Delivery:
    """Return a note, or a gap without records for one that is too large."""
    session_id, seq = message.session_id, message.seq
    value_bytes = sum(map(len, payload))
    if value_bytes > MAX_NOTE_BYTES:
        now_ns = time.time_ns()
        reason = f"note {message.key!r} of {value_bytes} bytes is too large"
        return GapDelivery(session_id, seq, Gap(DropStage.DECODE, now_ns, now_ns, {}, reason))
    value = message.value.encode("utf-8", "replace") or b"".join(payload)
    return NoteDelivery(session_id, seq, message.key, value)


def _records_delivery(message: Records, payload: tuple[bytes, ...]) -> Delivery:
    """Return a batch; or a gap where its kind is not known here, or its count is not its own.

    Refusing it would have the agent send it again for ever. What is counted comes from the frames,
    because a count is only a claim.
    """
    session_id, seq = message.session_id, message.seq
    size_bytes = len(payload[0]) if payload else 0
    name, reason = f"kind {message.kind}", "unknown to the daemon"
    count = min(message.count, size_bytes)  # A record of any kind has a byte at least.
    if message.kind in _KNOWN_KINDS:
        kind = ActivityKind(message.kind)
        count = size_bytes // DTYPES[kind].itemsize
        if count == message.count:
            return BatchDelivery(session_id, seq, message.kind, count, payload)
        name, reason = kind.name, f"the batch claims {message.count} records"
    now_ns = time.time_ns()
    gap = Gap(DropStage.DECODE, now_ns, now_ns, {name: count}, reason)
    return GapDelivery(session_id, seq, gap)
