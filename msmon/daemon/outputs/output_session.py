"""What one output knows of one session, from its opening until the daemon forgets it."""

from __future__ import annotations

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
    kind_and_count,
)
from msmon.errors import MsmonError
from msmon.sessions import Drops, DropStage, Gap, SessionInfo, merged_drops
from msmon.sinks.base import SessionOutput

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 2.0

MAX_KINDS = 63
OTHER_KINDS = "other"
"""A gap names so many kinds; the records of all further ones are counted under this name."""

OpenAnswer = Union["tuple[str, ...]", MsmonError]
"""The files of a session, or why it could not be opened."""


@dataclass
class Block:
    """Why a session can't be written at the moment. The output's thread writes it.

    ``since_s``: when that began (monotonic). ``retry_delay_s``: how long it waits after the next
    failure, twice as long each time.
    """

    since_s: float
    reason: str
    retry_delay_s: float = FIRST_RETRY_S


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
    waiting: deque[Delivery] = field(default_factory=deque)
    handed: deque[Delivery] = field(default_factory=deque)
    """What the sink has taken since the last commit."""
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
    files: tuple[str, ...] = ()
    generation: int = -1
    """Generation of the sink that has this session open; -1: none."""
    was_open: bool = False
    block: Block | None = None
    closing_at_s: float = 0.0
    """When the end arrived that is still to be written; 0: none did."""
    drops: Drops = field(default_factory=dict)
    """Records dropped here, per stage."""
    gap: Gap | None = None
    """What was dropped and is not noted in the output yet."""
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
        last = self.waiting[-1] if self.waiting else None
        if isinstance(delivery, Skipped) and isinstance(last, Skipped):
            first_seq = last.first_seq or last.seq
            self.waiting[-1] = Skipped(self.id, delivery.seq, first_seq)
            return 0
        self.waiting.append(delivery)
        self.size_bytes += delivery.size_bytes
        return delivery.size_bytes

    def opened(self, opened: SessionOutput, generation: int) -> None:
        """The sink, made anew ``generation`` times, has the session open."""
        self.generation = generation
        self.was_open = True
        self.files = opened.files
        self.written_seq = self.handed_seq = opened.written_seq
        self.taken_seq = max(self.taken_seq, opened.written_seq)
        if not self.pending:
            self.block = None

    def is_new(self, delivery: Delivery) -> bool:
        """Whether the sink is to be given this; an earlier daemon may have written it.

        An end is given in any case: the sink may have to close its files once more.
        """
        found_here = isinstance(delivery, GapDelivery) and delivery.found_here
        return found_here or isinstance(delivery, Closing) or delivery.seq > self.written_seq

    def take_next(self) -> Delivery | None:
        """Return what the sink is to be given next, None: nothing for now.

        A gap goes first where records were dropped. So it does where numbers are missing between
        what the sink has and what waits: an earlier daemon ended before it wrote them.
        """
        if not self.waiting or self.at_its_end:
            return None
        following = self.waiting[0]
        gap, self.gap = self.gap, None
        begins_seq = following.seq
        if isinstance(following, Skipped) and following.first_seq:
            begins_seq = following.first_seq
        if gap is None and self.handed_seq and begins_seq > self.handed_seq + 1:
            now_ns = time.time_ns()
            gap = Gap(
                DropStage.SINK, now_ns, now_ns, None, "the daemon ended before it could write"
            )
        if gap is not None:
            found = GapDelivery(self.id, following.seq - 1, gap, found_here=True)
            self.waiting.appendleft(found)
            self.handed_seq = found.seq
        return self.waiting[0]

    def handed_over(self, delivery: Delivery, instead: Delivery | None = None) -> None:
        """Note that the sink has taken the first of ``waiting``.

        ``instead``: what keeps its place where the sink could not write it at all.
        """
        self.waiting.popleft()
        if instead is not None:
            self.size_bytes += instead.size_bytes - delivery.size_bytes
        self.handed.append(instead or delivery)
        self.handed_seq = max(self.handed_seq, delivery.seq)

    def take_back(self) -> None:
        """Have all given again that the sink took since the last commit: it has forgotten it."""
        self.generation = -1
        self.waiting.extendleft(reversed(self.handed))
        self.handed.clear()

    def release(self) -> list[Delivery]:
        """Note that what the sink has taken is durable, and return it."""
        released = list(self.handed)
        self.handed.clear()
        self.size_bytes -= sum(delivery.size_bytes for delivery in released)
        self.block = None
        self.safe_seq = max(self.safe_seq, released[-1].seq if self.waiting else self.taken_seq)
        if isinstance(released[-1], Closing):
            self.generation = -1
            self.handed_seq = 0
            if not self.waiting:
                self.closing_at_s = 0.0
        return released

    def give_up(self, stage: DropStage | str, reason: str) -> int:
        """Drop and count everything that is not durable; returns by how many bytes less is held.

        The end of a session whose files exist stays. When the output works again, the gap and
        the end get into the files, so they tell what they lack.
        """
        pending = [*self.handed, *self.waiting]
        for delivery in pending:
            self.count_drop(delivery, stage, reason)
            if isinstance(delivery, GapDelivery):
                self.extend_gap(delivery.gap)
        self.handed.clear()
        self.waiting.clear()
        if pending and isinstance(pending[-1], Closing) and self.was_open:
            self.waiting.append(pending[-1])
        else:
            self.block = None
        self.generation, self.handed_seq, self.closing_at_s = -1, 0, 0.0
        self.safe_seq = self.taken_seq
        before_bytes = self.size_bytes
        self.size_bytes = sum(delivery.size_bytes for delivery in self.waiting)
        return before_bytes - self.size_bytes

    def count_drop(self, delivery: Delivery, stage: DropStage | str, reason: str) -> None:
        """Count the records of a dropped batch, and extend the gap to be written."""
        records = kind_and_count(delivery)
        if records is None:
            return
        kind, count = records
        self.lose({kind: count}, stage, reason)

    def extend_gap(self, gap: Gap) -> None:
        """Add a gap that found no room in the queue to the next one that is written.

        Its records are not counted here: they were counted where they were lost.
        """
        drops, self.drops = self.drops, {}
        self.lose(gap.records or {}, gap.stage, gap.reason)
        self.drops = drops

    def lose(self, records: Mapping[str, int], stage: DropStage | str, reason: str) -> None:
        """Count lost records per kind, and extend the gap to be written."""
        self.drops = merged_drops(self.drops, {stage: added(*records.values())})
        now_ns = time.time_ns()
        gap = self.gap or Gap(stage, now_ns, now_ns, {}, reason)
        lost = dict(gap.records or {})
        for kind, count in records.items():
            name = kind if kind in lost or len(lost) < MAX_KINDS else OTHER_KINDS
            lost[name] = added(lost.get(name, 0), count)
        self.gap = Gap(gap.stage, gap.start_ns, now_ns, lost, gap.reason)


def skipped(delivery: Delivery) -> Skipped:
    """Return what keeps the place of a delivery in the sequence."""
    return Skipped(delivery.session_id, delivery.seq)
