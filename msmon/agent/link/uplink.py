"""What the agent has to say about its sessions: numbered, kept until acknowledged.

The collector puts messages in, the link takes them out and sends them; this is the
only place where the two threads meet over data. Every session is a stream numbered
from 1. What is not acknowledged is kept, within a bound, and sent again after a
reconnect; what does not fit is counted and reported as a gap.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msmon.agent.link.payloads import payloads_of
from msmon.bus.codec import MAX_PAYLOAD_FRAME_BYTES, encode
from msmon.bus.messages import (
    GapReport,
    Message,
    Records,
    SessionClosed,
    SessionNote,
    SessionOpened,
    WindowReport,
)
from msmon.records.batch import Batch
from msmon.records.windows import Window
from msmon.sessions import DropStage, Gap, MonitorSettings, SessionEnd

KEPT_BYTES = 64 << 20
"""Unacknowledged messages kept for all sessions together."""

IN_FLIGHT_BYTES = 16 << 20
"""Messages sent and not acknowledged: what may stand between a heartbeat and the daemon."""

_RESERVED_BYTES = 8 << 20
"""Part of the kept bytes that records can't fill, left for windows, notes and gaps."""

_MESSAGE_OVERHEAD_BYTES = 200

MAX_NOTE_IN_HEADER_BYTES = 16 << 10
"""A longer text of a note goes into a payload frame: headers have a limit."""


class _Entry(NamedTuple):
    seq: int
    frames: list[bytes]
    size_bytes: int


@dataclass
class _Lost:
    """Records of one session that did not fit, not yet reported."""

    start_ns: int
    records: Counter[str] = field(default_factory=Counter)
    windows: int = 0


@dataclass
class _Stream:
    """One session on its way: ``unsent`` follows ``sent`` in sequence."""

    session_id: str
    opened: _Entry
    next_seq: int = 2
    sent: deque[_Entry] = field(default_factory=deque)
    unsent: deque[_Entry] = field(default_factory=deque)
    dropped: Counter[str] = field(default_factory=Counter)
    lost: _Lost | None = None
    closed_seq: int = 0


class Uplink:
    """Messages of all sessions of this process.

    ``wake`` is called, without a lock held, whenever there is something new to send.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        kept_bytes: int = KEPT_BYTES,
        in_flight_bytes: int = IN_FLIGHT_BYTES,
    ) -> None:
        self._wake = wake
        self._limit_bytes = kept_bytes
        self._records_limit_bytes = kept_bytes - min(_RESERVED_BYTES, kept_bytes // 4)
        self._in_flight_limit_bytes = in_flight_bytes
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}
        self._kept_bytes = 0
        self._in_flight_bytes = 0

    # --- the collector's side -----------------------------------------------------

    def open(self, session_id: str, settings: MonitorSettings, start_ns: int) -> None:
        """Begin the stream of a session."""
        opened = _entry(SessionOpened(session_id, 1, settings, start_ns))
        with self._lock:
            stream = _Stream(session_id, opened)
            stream.unsent.append(opened)
            self._streams[session_id] = stream
            self._kept_bytes += opened.size_bytes
        self._wake()

    def put_records(self, session_id: str, batch: Batch) -> bool:
        """Queue a batch; False when there was no room and its records were counted as lost."""
        size_bytes = batch.records.nbytes + sum(map(len, batch.strings))
        with self._lock:
            stream = self._streams[session_id]
            fits = self._has_room(stream, size_bytes, self._records_limit_bytes)
            if not fits:
                self._lost_of(stream).records[batch.kind.name] += len(batch)
                stream.dropped[batch.kind.name] += len(batch)
        if fits:
            for count, payload in payloads_of(batch):  # the copies are made without the lock
                self._put(session_id, Records(session_id, 0, int(batch.kind), count), payload)
        return fits

    def put_window(self, session_id: str, window: Window) -> bool:
        """Queue a window; False when there was no room for it."""
        payload = window.to_frames()
        message = WindowReport(session_id, 0, **window.header_fields())
        with self._lock:
            stream = self._streams[session_id]
            fits = self._has_room(stream, _size(payload), self._limit_bytes)
            if fits:
                self._append(stream, message, payload)
            else:
                self._lost_of(stream).windows += 1
        self._wake()
        return fits

    def put_note(self, session_id: str, key: str, value: str) -> None:
        """Queue a fact about the session. Left out when there is no room, or too long a text."""
        data = value.encode("utf-8", "replace")
        if len(data) <= MAX_NOTE_IN_HEADER_BYTES:
            self._put_small(session_id, SessionNote(session_id, 0, key, value))
        elif len(data) <= MAX_PAYLOAD_FRAME_BYTES:
            self._put_small(session_id, SessionNote(session_id, 0, key, ""), (data,))

    def put_gap(self, session_id: str, gap: Gap) -> None:
        """Queue the report that records were lost before they came here.

        Left out when there is no room: the session's counts tell of the loss as well.
        """
        self._put_small(session_id, GapReport(session_id, 0, gap))

    def close(self, session_id: str, end: SessionEnd) -> None:
        """End the stream of a session; it is forgotten once all of it is acknowledged."""
        with self._lock:
            stream = self._streams[session_id]
            self._report_lost(stream)
            stream.closed_seq = stream.next_seq
            self._append(stream, SessionClosed(session_id, 0, end))
        self._wake()

    def dropped(self, session_id: str) -> dict[str, int]:
        """Return the records per kind name that did not fit, since the session began."""
        with self._lock:
            stream = self._streams.get(session_id)
            return dict(stream.dropped) if stream else {}

    # --- the link's side --------------------------------------------------------------

    def take(self) -> list[bytes] | None:
        """Return the frames to send next, or None when nothing may be sent now."""
        with self._lock:
            for stream in self._streams.values():
                if not stream.unsent:
                    continue
                entry = stream.unsent[0]
                after = self._in_flight_bytes + entry.size_bytes
                if self._in_flight_bytes and after > self._in_flight_limit_bytes:
                    return None
                stream.sent.append(stream.unsent.popleft())
                self._in_flight_bytes = after
                return entry.frames
        return None

    def acknowledge(self, session_id: str, seq: int) -> None:
        """Forget what the daemon has made safe."""
        with self._lock:
            stream = self._streams.get(session_id)
            if stream is None:
                return
            for entry in _up_to(stream.sent, seq):
                self._kept_bytes -= entry.size_bytes
                self._in_flight_bytes -= entry.size_bytes
            for entry in _up_to(stream.unsent, seq):
                self._kept_bytes -= entry.size_bytes
            if stream.closed_seq and seq >= stream.closed_seq:
                del self._streams[session_id]

    def start_over(self) -> None:
        """Prepare for a new connection: every stream is opened again, then what is not safe.

        The opening was perhaps acknowledged before; a daemon that knows it drops it.
        """
        with self._lock:
            self._in_flight_bytes = 0
            for stream in self._streams.values():
                stream.unsent.extendleft(reversed(stream.sent))
                stream.sent.clear()
                if not stream.unsent or stream.unsent[0].seq != 1:
                    stream.unsent.appendleft(stream.opened)
                    self._kept_bytes += stream.opened.size_bytes

    @property
    def all_sent(self) -> bool:
        """Whether everything has been taken for sending, acknowledged or not."""
        with self._lock:
            return not any(stream.unsent for stream in self._streams.values())

    @property
    def kept_bytes(self) -> int:
        """Bytes of messages not acknowledged."""
        return self._kept_bytes

    def _put(self, session_id: str, message: Message, payload: Sequence[bytes] = ()) -> None:
        with self._lock:
            self._append(self._streams[session_id], message, payload)
        self._wake()

    def _put_small(self, session_id: str, message: Message, payload: Sequence[bytes] = ()) -> None:
        if self._kept_bytes < self._limit_bytes:
            self._put(session_id, message, payload)

    # --- with the lock held ---------------------------------------------------------------

    def _append(self, stream: _Stream, message: Any, payload: Sequence[bytes] = ()) -> None:
        entry = _entry(dataclasses.replace(message, seq=stream.next_seq), payload)
        stream.next_seq += 1
        stream.unsent.append(entry)
        self._kept_bytes += entry.size_bytes

    def _has_room(self, stream: _Stream, size_bytes: int, limit_bytes: int) -> bool:
        """After a loss, wait until a quarter of the bound is free, then report it."""
        if stream.lost is not None and self._kept_bytes > limit_bytes * 3 // 4:
            return False
        if self._kept_bytes + size_bytes > limit_bytes:
            return False
        self._report_lost(stream)
        return True

    def _lost_of(self, stream: _Stream) -> _Lost:
        if stream.lost is None:
            stream.lost = _Lost(time.time_ns())
        return stream.lost

    def _report_lost(self, stream: _Stream) -> None:
        lost, stream.lost = stream.lost, None
        if lost is None:
            return
        reason = "the daemon was away or too slow"
        if lost.windows:
            reason += f"; {lost.windows} windows are missing too"
        gap = Gap(DropStage.UPLINK, lost.start_ns, time.time_ns(), dict(lost.records), reason)
        self._append(stream, GapReport(stream.session_id, 0, gap))


def _entry(message: Any, payload: Sequence[bytes] = ()) -> _Entry:
    frames = encode(message, payload=payload)
    return _Entry(message.seq, frames, _size(frames))


def _size(frames: Sequence[bytes]) -> int:
    return _MESSAGE_OVERHEAD_BYTES + sum(len(frame) for frame in frames)


def _up_to(entries: deque[_Entry], seq: int) -> Iterator[_Entry]:
    while entries and entries[0].seq <= seq:
        yield entries.popleft()
