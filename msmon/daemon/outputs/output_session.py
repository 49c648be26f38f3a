"""What one output knows of one session, from its opening until the daemon forgets it."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Union

from msmon.bounds import added
from msmon.daemon.access.owners import Owner
from msmon.daemon.outputs.delivery import (
    Closing,
    Delivery,
    GapDelivery,
    Skipped,
    WindowDelivery,
    loss_of,
)
from msmon.daemon.outputs.lag import CAUGHT_UP_BYTES, Block, Lag, LeftBehind
from msmon.errors import MsmonError
from msmon.sessions import Drops, DropStage, Gap, SessionInfo, merged_drops
from msmon.sinks.base import SessionOutput

MAX_PLACES = 64
"""Places in a row that keep gaps of different stages apart. The next one joins the last, because
places are kept beyond every bound of a queue. Example: an output takes nothing, and batches and
windows are dropped in turn."""

OpenAnswer = Union["tuple[str, ...]", MsmonError]
"""The files of a session, or why it could not be opened."""


@dataclass
class OutputSession:
    """One session in one output.

    ``handed`` and then ``waiting`` hold everything that is not durable yet, in order. The broker's
    loop sets ``answer``, appends to ``waiting`` and counts what finds no room; everything else is
    written by the output's thread. Both hold the output's lock.
    """

    info: SessionInfo
    owner: Owner
    answer: Callable[[OpenAnswer], None] | None
    """Called once with the outcome of the first attempt to open it."""
    resumable: bool = False
    """Whether the sink says what an earlier daemon has written. If so, and nothing is, the stream
    must begin with its second message: the first one is the opening."""
    waiting: deque[Delivery] = field(default_factory=deque)
    handed: deque[Delivery] = field(default_factory=deque)
    """What the sink has taken since the last commit."""
    in_hand: Delivery | None = None
    """The first of ``waiting`` while the sink is being given it: nothing may join it."""
    size_bytes: int = 0
    """Of both."""
    taken_seq: int = 1
    """Last sequence number that arrived."""
    handed_seq: int = 0
    """Last sequence number that the sink has; 0: not known."""
    written_seq: int = 0
    """What an earlier daemon had written, as the sink says."""
    safe_seq: int = 0
    """Everything up to here is durable, or given up and counted."""
    uncertain_seq: int = 0
    """Up to here a commit was tried of which nothing was heard; 0: none."""
    lag: Lag = field(default_factory=Lag)
    left: LeftBehind = field(default_factory=LeftBehind)
    """What an earlier daemon acknowledged and did not write, until the output tells of it."""
    has_note: bool = False
    """Whether an earlier daemon's note of that is still stored."""
    files: tuple[str, ...] = ()
    generation: int = -1
    """Generation of the sink that has this session open; -1: none."""
    was_open: bool = False
    has_file: bool = False
    """Whether it was open, here or in an earlier daemon."""
    suspect: bool = False
    """A commit that it took part in hung. The next one is of it alone, to find out."""
    block: Block | None = None
    closing_at_s: float = 0.0
    """When the end arrived that is still to be written; 0: none did."""
    written: int = 0
    """Records that are durable, of those that came to this daemon."""
    continued: bool = False
    """Whether an earlier daemon had written a part of it."""
    drops: Drops = field(default_factory=dict)
    """Records dropped here for good, per stage."""
    owed: list[Delivery] = field(default_factory=list)
    """Gaps of what was given up before there was a file. They are written if it comes back."""
    scheduled: bool = False
    """Whether the queue has it among those that are to be looked at."""

    @property
    def id(self) -> str:
        """Its session id."""
        return self.info.session_id

    @property
    def pending(self) -> bool:
        """Whether there is anything that is not durable."""
        return bool(self.waiting or self.handed)

    @property
    def acknowledged_seq(self) -> int:
        """Everything up to here is durable or counted as dropped, for the time being or for good.

        What stands before it may be acknowledged.
        """
        return max(self.safe_seq, self.lag.until_seq)

    @property
    def counted_drops(self) -> Drops:
        """Records that are not written, per stage, with those that may be written later."""
        return merged_drops(self.drops, self.lag.drops)

    def leave_behind(self) -> None:
        """Have nobody wait for this output any more: what waits for it counts as dropped."""
        self.lag.behind = True
        for delivery in (*self.handed, *self.waiting):
            self.lag.acknowledged(delivery)

    @property
    def at_its_end(self) -> bool:
        """Whether the sink has taken an end.

        Then what follows waits for the commit; the sink can open the session again only after it.
        """
        return bool(self.handed) and isinstance(self.handed[-1], Closing)

    def append(self, delivery: Delivery) -> int:
        """Queue a delivery; returns by how many bytes the queue grew.

        What is skipped is merged with what was skipped before it: a flood takes no memory.
        """
        self.taken_seq = max(self.taken_seq, delivery.seq)
        self.closing_at_s = time.monotonic() if isinstance(delivery, Closing) else 0.0
        before_bytes = self.size_bytes
        owed, self.owed = self.owed, []
        self.waiting.extend(owed)
        self.size_bytes += sum(item.size_bytes for item in owed)
        last = self.waiting[-1] if self.waiting else None
        if self.lag.behind:
            self.lag.acknowledged(delivery)
        if isinstance(delivery, Skipped) and self._can_join(last, delivery):
            assert isinstance(last, Skipped)
            delivery = last.joined(delivery)
            self.size_bytes -= self.waiting.pop().size_bytes
        self.waiting.append(delivery)
        self.size_bytes += delivery.size_bytes
        return self.size_bytes - before_bytes

    def _can_join(self, last: Delivery | None, following: Skipped) -> bool:
        """Whether one is to stand for both.

        Not where the sink is being given the first of them, and not where a commit may have reached
        just that one: see :meth:`opened`.
        """
        if not isinstance(last, Skipped) or last is self.in_hand or last.seq == self.uncertain_seq:
            return False
        return last.can_join(following) or self._ends_in_many_places()

    def _ends_in_many_places(self) -> bool:
        latest = itertools.islice(reversed(self.waiting), MAX_PLACES)
        return len(self.waiting) >= MAX_PLACES and all(isinstance(item, Skipped) for item in latest)

    def opened(self, opened: SessionOutput, generation: int) -> None:
        """The sink, made anew ``generation`` times, has the session open.

        What was counted as dropped, and is durable all the same, is counted no longer: the process
        was ended before it could answer, but after it had committed.
        """
        self.generation = generation
        self.continued |= not self.was_open and opened.written_seq > 0
        self.was_open = self.has_file = True
        self.files = opened.files
        self.written_seq = opened.written_seq
        self.handed_seq = max(opened.written_seq, 1 if self.resumable else 0)
        self.taken_seq = max(self.taken_seq, opened.written_seq)
        self.uncertain_seq = 0
        self._take_back_drops()
        if not self.pending:
            self.block = None

    def _take_back_drops(self) -> None:
        """Don't count as dropped what the sink says it has."""
        for delivery in self.waiting:
            if delivery.seq > self.written_seq:
                return
            if not isinstance(delivery, Skipped) or delivery.gap is None:
                continue
            stage, counted = delivery.gap.stage, self.drops.get(delivery.gap.stage)
            if stage in (DropStage.DISK, DropStage.SINK) and counted:
                durable = sum((delivery.gap.records or {}).values())
                self.drops[stage] = max(0, counted - durable)

    def is_new(self, delivery: Delivery) -> bool:
        """Whether the sink is to be given this; an earlier daemon may have written it.

        An end is given in any case: the sink may have to close its files once more.
        """
        found_here = isinstance(delivery, WindowDelivery) and delivery.found_here
        return found_here or isinstance(delivery, Closing) or delivery.seq > self.written_seq

    def take_next(self) -> Delivery | None:
        """Return what the sink is to be given next, None: nothing for now.

        A gap goes first where numbers are missing between what the sink has and what waits: an
        earlier daemon ended before it wrote them.
        """
        if not self.waiting or self.at_its_end:
            return None
        following = self.waiting[0]
        begins_seq = following.seq
        if isinstance(following, Skipped) and following.first_seq:
            begins_seq = following.first_seq
        told = isinstance(following, GapDelivery) and following.found_here
        missing_seq = self.handed_seq + 1 if self.handed_seq else self.left.first_seq
        if not told and missing_seq < begins_seq and (self.handed_seq or self.left.last_seq):
            self._tell_of_missing(missing_seq, begins_seq - 1)
        self.in_hand = self.waiting[0]
        return self.in_hand

    def _tell_of_missing(self, first_seq: int, last_seq: int) -> None:
        """Have gaps written for messages that nobody has any more, and count what was in them."""
        lost: Mapping[DropStage, dict[str, int] | None] | None
        lost = self.left.between(first_seq, last_seq)
        if lost is None:
            lost = {DropStage.SINK: None}
        self.left = LeftBehind()
        now_ns = time.time_ns()
        for stage, records in lost.items():
            gap = Gap(stage, now_ns, now_ns, records, "the daemon ended before it could write")
            if stage in (DropStage.SINK, DropStage.DISK, DropStage.WINDOWS):
                count = None if records is None else added(*records.values())
                self.drops = merged_drops(self.drops, {stage: count})
            self.waiting.appendleft(GapDelivery(self.id, last_seq, gap, found_here=True))
        self.handed_seq = last_seq

    def handed_over(self, delivery: Delivery) -> None:
        """Note that the sink has taken the first of ``waiting``."""
        self.in_hand = None
        self.handed.append(self.waiting.popleft())
        self.handed_seq = max(self.handed_seq, delivery.seq)

    def drop_first(self, stage: DropStage, reason: str) -> int:
        """Drop the first of ``waiting``: the sink can't write it. Returns by how much less is held.

        A gap takes its place. If the sink can't write that either, nothing but the place is left.
        """
        self.in_hand = None
        first = self.waiting.popleft()
        self.waiting.appendleft(
            Skipped(self.id, first.seq, first.first_seq)
            if isinstance(first, Skipped)
            else self.dropped(first, stage, reason)
        )
        less_bytes = first.size_bytes - self.waiting[0].size_bytes
        self.size_bytes -= less_bytes
        return less_bytes

    def take_back(self) -> None:
        """Have all given again that the sink took since the last commit: it has forgotten it."""
        self.generation, self.in_hand = -1, None
        self.waiting.extendleft(reversed(self.handed))
        self.handed.clear()

    def release(self) -> list[Delivery]:
        """Note that what the sink has taken is durable, and return it."""
        released = list(self.handed)
        self.handed.clear()
        self.size_bytes -= sum(delivery.size_bytes for delivery in released)
        self.block, self.suspect, self.uncertain_seq = None, False, 0
        for delivery in released:
            self.lag.settled(delivery)
        if not self.waiting:
            self.lag.nothing_waits()
        elif self.size_bytes <= CAUGHT_UP_BYTES:
            self.lag.behind = False
        self.safe_seq = max(self.safe_seq, released[-1].seq if self.waiting else self.taken_seq)
        if isinstance(released[-1], Closing):
            self.generation = -1
            self.handed_seq = 0
            if not self.waiting:
                self.closing_at_s = 0.0
        return released

    def give_up(self, stage: DropStage, reason: str) -> int:
        """Drop and count everything that is not durable; returns by how many bytes less is held.

        The end of a session whose files exist stays, with the gap before it. When the output
        works again, both get into the files, so they tell what they lack.
        """
        pending = [*self.handed, *self.waiting]
        self.handed.clear()
        self.waiting.clear()
        before_bytes, self.size_bytes = self.size_bytes, 0
        for delivery in pending:
            kept = isinstance(delivery, Closing) and delivery is pending[-1]
            self.append(delivery if kept else self.dropped(delivery, stage, reason))
        if not self.has_file or not pending or not isinstance(pending[-1], Closing):
            self.owed = [item for item in self.waiting if isinstance(item, Skipped)]
            self.waiting.clear()
            self.lag.nothing_waits()
            self.block, self.size_bytes = None, 0
        self.generation, self.handed_seq, self.closing_at_s = -1, 0, 0.0
        self.safe_seq = self.taken_seq
        return before_bytes - self.size_bytes

    def left_at_the_end(self) -> LeftBehind:
        """Return what is acknowledged and not written now that the daemon ends."""
        return LeftBehind.of((*self.handed, *self.waiting), self.lag.until_seq)

    def dropped(self, delivery: Delivery, stage: DropStage, reason: str) -> Skipped:
        """Count a delivery that is not written; returns what keeps its place and tells of it.

        The records that a gap names are not counted here: they were counted where they were lost.
        """
        if isinstance(delivery, Skipped):
            return delivery
        self.lag.settled(delivery)
        gap = delivery.gap if isinstance(delivery, GapDelivery) else None
        loss = loss_of(delivery, stage)
        if loss is not None and any(loss[1].values()):
            stage, records = loss
            self.drops = merged_drops(self.drops, {stage: added(*records.values())})
            start_ns = end_ns = time.time_ns()
            if isinstance(delivery, WindowDelivery):
                start_ns, end_ns = delivery.header.start_ns, delivery.header.end_ns
            gap = Gap(stage, start_ns, end_ns, dict(records), reason)
        return Skipped(self.id, delivery.seq, gap=gap)


def skipped(delivery: Delivery) -> Skipped:
    """Return what keeps the place of a delivery in the sequence."""
    return Skipped(delivery.session_id, delivery.seq)
