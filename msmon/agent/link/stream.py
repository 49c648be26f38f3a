"""One session on its way to the daemon: numbered messages, and what did not fit."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msmon.bus.codec import decode, encode
from msmon.bus.messages import GapReport, Records, SessionClosed
from msmon.records.kinds import ActivityKind
from msmon.records.window_header import WindowHeader
from msmon.sessions import Drops, DropStage, Gap, merged_drops

_MESSAGE_OVERHEAD_BYTES = 200
"""What Python's objects for one message take beside its frames, about."""


class Entry(NamedTuple):
    """A message as it is sent, with its number in the stream."""

    seq: int
    frames: list[bytes]
    size_bytes: int


@dataclass
class _Lost:
    """What did not fit since ``start_ns`` and is not reported yet. Times are on the wall clock."""

    stage: DropStage
    start_ns: int
    end_ns: int
    reason: str
    records: Counter[str] = field(default_factory=Counter)

    def gap(self) -> Gap:
        """Return the report."""
        return Gap(self.stage, self.start_ns, self.end_ns, dict(self.records), self.reason)


class Stream:
    """The messages of one session, numbered from 1; ``unsent`` follows ``sent`` in sequence.

    Written by the collector's and the link's thread, under the lock of the
    :class:`~msmon.agent.link.uplink.Uplink` that it belongs to.
    """

    def __init__(self, session_id: str, opened: Entry) -> None:
        self.session_id = session_id
        self.opened = opened
        """The first message. It is kept to the end: every new connection begins with it."""
        self.sent: deque[Entry] = deque()
        self.unsent: deque[Entry] = deque([opened])
        self.dropped: Drops = {}
        """Records that did not fit since the session began: UPLINK, and WINDOWS in windows."""
        self.closed_seq = 0
        """Number of the last message; 0 while the session runs."""
        self._next_seq = 2
        self._taken_seq = 0
        """The highest number that was ever sent."""
        self._lost: dict[DropStage, _Lost] = {}
        """By stage: UPLINK for records, WINDOWS for those in windows."""

    @property
    def has_unreported_records(self) -> bool:
        """Whether records did not fit and no gap tells of it yet."""
        return DropStage.UPLINK in self._lost

    def append(self, message: Any, payload: Sequence[bytes] = ()) -> int:
        """Number a message and queue it. Returns its size in bytes."""
        entry = entry_of(dataclasses.replace(message, seq=self._next_seq), payload)
        self._next_seq += 1
        self.unsent.append(entry)
        return entry.size_bytes

    def append_last(self, message: Any) -> int:
        """Queue the message that closes the stream. Returns its size in bytes."""
        self.closed_seq = self._next_seq
        return self.append(message)

    def lose_records(self, kind_name: str, count: int, reason: str) -> None:
        """Count records that did not fit."""
        now_ns = time.time_ns()
        lost = _Lost(DropStage.UPLINK, now_ns, now_ns, reason)
        lost = self._lost.setdefault(DropStage.UPLINK, lost)
        lost.end_ns = now_ns
        self._count(lost, {kind_name: count})

    def lose_window(self, header: WindowHeader, reason: str) -> None:
        """Count the records in a window that did not fit."""
        lost = _Lost(DropStage.WINDOWS, header.start_ns, header.end_ns, reason)
        lost = self._lost.setdefault(DropStage.WINDOWS, lost)
        lost.end_ns = header.end_ns
        self._count(lost, header.kept)

    def _count(self, lost: _Lost, records: Mapping[str, int]) -> None:
        lost.records.update(records)
        self.dropped = merged_drops(self.dropped, {lost.stage: sum(records.values())})

    def report_losses(self, *stages: DropStage) -> int:
        """Queue a gap for what did not fit, if anything. Returns their size in bytes."""
        lost = [self._lost.pop(stage) for stage in stages if stage in self._lost]
        return sum(self.append(GapReport(self.session_id, 0, item.gap())) for item in lost)

    def take(self) -> Entry:
        """Return the first unsent message, which is sent now."""
        entry = self.unsent.popleft()
        self.sent.append(entry)
        self._taken_seq = max(self._taken_seq, entry.seq)
        return entry

    def hasten_end(self, reason: str) -> None:
        """Bring the end of a closed stream forward: there is no time to send all of it.

        Records that were never sent are dropped. The gap before the end and the end's counts tell
        how many. All other messages stay, and take the numbers that become free.
        """
        again = [entry for entry in self.unsent if entry.seq <= self._taken_seq]
        never = [decode(entry.frames) for entry in self.unsent if entry.seq > self._taken_seq]
        self.unsent = deque(again)
        self._next_seq = self._taken_seq + 1
        given_up = 0
        for envelope in never:
            message = envelope.message
            if isinstance(message, Records):
                given_up += message.count
                self.lose_records(ActivityKind(message.kind).name, message.count, reason)
            elif isinstance(message, SessionClosed):
                self.report_losses(DropStage.UPLINK)
                self.append_last(_with_more_drops(message, given_up))
            else:
                self.append(message, envelope.payload)

    def send_again(self) -> int:
        """Queue again what was sent and not acknowledged, after the opening.

        The opening was perhaps acknowledged before; a daemon that knows it drops it. Returns
        the size in bytes of an opening that had to be added.
        """
        self.unsent.extendleft(reversed(self.sent))
        self.sent.clear()
        if self.unsent and self.unsent[0].seq == self.opened.seq:
            return 0
        self.unsent.appendleft(self.opened)
        return self.opened.size_bytes


def _with_more_drops(closed: SessionClosed, count: int) -> SessionClosed:
    counts = closed.end.counts
    drops = merged_drops(counts.drops, {DropStage.UPLINK: count} if count else {})
    counts = dataclasses.replace(counts, drops=drops)
    return dataclasses.replace(closed, end=dataclasses.replace(closed.end, counts=counts))


def entry_of(message: Any, payload: Sequence[bytes] = ()) -> Entry:
    """Return a numbered message as it is sent."""
    frames = encode(message, payload=payload)
    return Entry(message.seq, frames, size_of(frames))


def size_of(frames: Sequence[bytes]) -> int:
    """Return how many bytes a message of these frames counts for."""
    return _MESSAGE_OVERHEAD_BYTES + sum(len(frame) for frame in frames)


def take_up_to(entries: deque[Entry], seq: int) -> int:
    """Remove the entries up to a number. Returns their size in bytes."""
    size_bytes = 0
    while entries and entries[0].seq <= seq:
        size_bytes += entries.popleft().size_bytes
    return size_bytes
