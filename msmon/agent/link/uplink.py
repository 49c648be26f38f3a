"""Keeps the messages of all sessions until the daemon has acknowledged them.

The collector puts messages in; the link takes them out and sends them. What is not
acknowledged is kept, within a bound, and sent again after a reconnect, so that a daemon may
restart without a loss. What exceeds the bound is dropped, counted and reported as a gap. Part of
the bound is left to windows: however many records wait, windows find room.

What the open window of a session holds so far is kept too, but only the newest of it, and it is
sent once: it serves a daemon when this process is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msmon.agent.link.stream import Stream, entry_of, size_of, take_up_to
from msmon.bus.codec import MAX_PAYLOAD_FRAME_BYTES, encode
from msmon.bus.messages import (
    GapReport,
    Message,
    Records,
    SessionClosed,
    SessionNote,
    SessionOpened,
    WindowReport,
    WindowSoFar,
)
from msmon.sessions import Drops, DropStage, Gap, MonitorSettings, SessionEnd, merged_drops
from msmon.threads import Lock

if TYPE_CHECKING:
    from msmon.records.batch import Batch
    from msmon.records.windows import Window

KEPT_BYTES = 64 << 20
"""Unacknowledged messages kept for all sessions together."""

IN_FLIGHT_BYTES = 16 << 20
"""Messages sent and not acknowledged: what may stand between a heartbeat and the daemon."""

_RESERVED_BYTES = 8 << 20
"""Part of the kept bytes that records can't fill, left for windows, notes and gaps."""

_AWAY = "the daemon was away"
_ENDED = "the job ended before they could be sent"
_TOO_SLOW = "records came faster than the daemon took them"

MAX_NOTE_IN_HEADER_BYTES = 16 << 10
"""A longer text of a note goes into a payload frame: headers have a limit."""


class Uplink:
    """A stream of messages per session, and one bound on their memory for all.

    Written by the collector's thread, which puts, and by the link's, which takes,
    acknowledges and says whether there is a daemon; both under ``_lock``. ``wake`` is called,
    without the lock, whenever there is something new to send.
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
        self._lock = Lock()
        self._streams: dict[str, Stream] = {}
        self._so_far: dict[str, list[bytes]] = {}
        """Session id → frames on its open window that were not sent yet."""
        self._kept_bytes = 0
        self._in_flight_bytes = 0
        self._connected = False
        self._daemon_takes_so_far = False

    # --- the collector's side -----------------------------------------------------

    def open(self, session_id: str, settings: MonitorSettings, start_ns: int) -> None:
        """Begin the stream of a session."""
        opened = entry_of(SessionOpened(session_id, 1, settings, start_ns))
        with self._lock:
            self._streams[session_id] = Stream(session_id, opened)
            self._kept_bytes += opened.size_bytes
        self._wake()

    def put_records(self, session_id: str, batch: Batch) -> bool:
        """Queue a batch; False when there was no room and its records were counted as lost."""
        from msmon.agent.link.payloads import payloads_of  # numpy: with the first records

        parts = list(payloads_of(batch))  # the copies are made without the lock
        size_bytes = sum(size_of(payload) for _, payload in parts)
        with self._lock:
            stream = self._streams[session_id]
            fits = self._has_room_for_records(stream, size_bytes)
            if fits:
                self._kept_bytes += stream.report_losses(DropStage.UPLINK, DropStage.WINDOWS)
                for count, payload in parts:
                    message = Records(session_id, 0, int(batch.kind), count)
                    self._kept_bytes += stream.append(message, payload)
            else:
                stream.lose_records(batch.kind.name, len(batch), self._reason)
        self._wake()
        return fits

    def has_room_for_records(self, session_id: str, size_bytes: int) -> bool:
        """Whether :meth:`put_records` would find room for so much."""
        with self._lock:
            return self._has_room_for_records(self._streams[session_id], size_bytes)

    def put_window(self, session_id: str, window: Window) -> bool:
        """Queue a window; False when there was no room and its records were counted as lost."""
        from msmon.records.window_frames import frames_of  # numpy: with the first window

        payload = frames_of(window)
        message = WindowReport(session_id, 0, **window.header_fields())
        with self._lock:
            stream = self._streams[session_id]
            self._so_far.pop(session_id, None)
            fits = self._kept_bytes + size_of(payload) <= self._limit_bytes
            if fits:
                self._kept_bytes += stream.report_losses(DropStage.WINDOWS)
                self._kept_bytes += stream.append(message, payload)
            else:
                stream.lose_window(window, self._reason)
        self._wake()
        return fits

    @property
    def wants_so_far(self) -> bool:
        """Whether there is a daemon that takes what an open window holds so far."""
        return self._connected and self._daemon_takes_so_far

    def put_so_far(self, session_id: str, window: Window) -> None:
        """Leave what the open window holds, in place of what was left before."""
        from msmon.records.window_frames import frames_of

        message = WindowSoFar(session_id, **window.header_fields())
        frames = encode(message, payload=frames_of(window))
        with self._lock:
            self._so_far[session_id] = frames
        self._wake()

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
            self._so_far.pop(session_id, None)
            self._kept_bytes += stream.report_losses(DropStage.UPLINK, DropStage.WINDOWS)
            self._kept_bytes += stream.append_last(SessionClosed(session_id, 0, end))
        self._wake()

    def dropped(self, session_id: str) -> Drops:
        """Return the records that did not fit since the session began, per stage.

        Of a session that was closed it is known only until all of it is acknowledged.
        """
        with self._lock:
            stream = self._streams.get(session_id)
            return merged_drops(stream.dropped) if stream else {}

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
                self._in_flight_bytes = after
                return stream.take().frames
        return None

    def take_last_words(self) -> list[list[bytes]]:
        """Return all that is to be sent when there is no more time: records are left out, counted.

        A session that was not closed has no last words: its counts are not known yet.
        """
        with self._lock:
            closed = [stream for stream in self._streams.values() if stream.closed_seq]
            words = []
            for stream in closed:
                stream.hasten_end(_ENDED)
                words += [stream.take().frames for _ in range(len(stream.unsent))]
            return words

    def acknowledge(self, session_id: str, seq: int) -> None:
        """Forget what the daemon has made safe, and a session when that is all of it."""
        with self._lock:
            stream = self._streams.get(session_id)
            if stream is None:
                return
            sent_bytes = take_up_to(stream.sent, seq)
            self._in_flight_bytes -= sent_bytes
            self._kept_bytes -= sent_bytes + take_up_to(stream.unsent, seq)
            if stream.closed_seq and seq >= stream.closed_seq:
                del self._streams[session_id]

    def take_so_far(self) -> list[bytes] | None:
        """Return the frames on an open window that are to be sent now, if there are any."""
        with self._lock:
            for session_id in self._so_far:
                unsent = self._streams[session_id].unsent
                if not unsent or unsent[0].seq > 1:  # else the daemon doesn't know it yet
                    return self._so_far.pop(session_id)
        return None

    @property
    def connected(self) -> bool:
        """Whether there is a connection on which something can be sent."""
        return self._connected

    def disconnected(self) -> None:
        """Note that the connection is lost."""
        self._connected = False

    def start_over(self, daemon_takes_so_far: bool = False) -> None:
        """Prepare for a new connection: all that is not acknowledged is to be sent again.

        ``daemon_takes_so_far``: whether the daemon knows :class:`WindowSoFar`.
        """
        with self._lock:
            self._connected = True
            self._daemon_takes_so_far = daemon_takes_so_far
            self._so_far.clear()
            self._in_flight_bytes = 0
            for stream in self._streams.values():
                self._kept_bytes += stream.send_again()

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
            self._kept_bytes += self._streams[session_id].append(message, payload)
        self._wake()

    def _put_small(self, session_id: str, message: Message, payload: Sequence[bytes] = ()) -> None:
        if self._kept_bytes < self._limit_bytes:
            self._put(session_id, message, payload)

    # --- with the lock held ---------------------------------------------------------------

    def _has_room_for_records(self, stream: Stream, size_bytes: int) -> bool:
        """Whether so many bytes of records fit into the part of the bound that is theirs.

        After a loss none fit until a quarter of it is free. Otherwise a daemon that is a little
        too slow would cause a gap for every second message.
        """
        limit_bytes = self._records_limit_bytes
        if stream.has_unreported_records and self._kept_bytes > limit_bytes * 3 // 4:
            return False
        return self._kept_bytes + size_bytes <= limit_bytes

    @property
    def _reason(self) -> str:
        return _TOO_SLOW if self._connected else _AWAY
