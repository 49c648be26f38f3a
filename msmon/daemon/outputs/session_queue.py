"""What waits for one output: its sessions, when each is looked at, and how much is held.

The broker's loop puts in, the output's thread takes out; both under one lock. What does not
fit is dropped, counted, and becomes a gap in the output. Two bounds hold: that of the queue,
and the share of the owner whose data it is, so that one user's flood leaves room for others.
"""

from __future__ import annotations

import abc
import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable

from msmon.daemon.access.owners import Owner
from msmon.daemon.access.shares import Resource, Shares
from msmon.daemon.outputs.delivery import (
    BatchDelivery,
    Closing,
    Delivery,
    GapDelivery,
)
from msmon.daemon.outputs.session import OpenAnswer, OutputSession, skipped
from msmon.sessions import Drops, SessionInfo

QUEUE_BYTES = 128 << 20


class SessionQueue(abc.ABC):
    """The sessions of one output, with everything of them that is not durable yet.

    ``unwanted``: types of deliveries that the sink does not want. Public methods may be called
    from any thread.
    """

    def __init__(
        self, name: str, owner: Owner | None, unwanted: tuple[type, ...], queue_bytes: int
    ) -> None:
        self.name = name
        self.owner = owner
        self._unwanted = unwanted
        self._queue_bytes = queue_bytes
        self._shares: Shares | None = None
        self._changed = threading.Condition(threading.RLock())
        self._sessions: dict[str, OutputSession] = {}
        self._due: list[tuple[float, int, OutputSession]] = []
        """Sessions to look at, by time; each is here at most once."""
        self._order = itertools.count()
        self._errands: deque[Callable[[], None]] = deque()
        """What else the thread is to do, before everything else."""
        self._held_bytes = 0
        self._deadline_s: float | None = None
        """When the daemon ends (monotonic); from then on nothing more is taken."""

    @abc.abstractmethod
    def _wake(self) -> None:
        """Have the thread look at what is due; the lock is held."""

    def count_against(self, shares: Shares) -> None:
        """Count what is queued and written against its owners' shares, from now on."""
        self._shares = shares

    def open_session(
        self, session: SessionInfo, owner: Owner, answer: Callable[[OpenAnswer], None]
    ) -> None:
        """Begin a session, or go on with one that was closed; ``answer`` is called once."""
        with self._changed:
            known = self._sessions.setdefault(
                session.session_id, OutputSession(session, owner, None)
            )
            known.answer = answer
            self._schedule(known)

    def put(self, delivery: Delivery) -> None:
        """Queue a delivery. A batch or window that does not fit is dropped and counted."""
        with self._changed:
            session = self._sessions.get(delivery.session_id)
            if session is None or self._deadline_s is not None:
                return  # while the daemon ends it is left to the agent, which sends it again
            if isinstance(delivery, self._unwanted):
                delivery = skipped(delivery)
            elif not isinstance(delivery, Closing):
                delivery = self._fitting(session, delivery)
            self._hold(session, session.append(delivery))
            self._schedule(session)

    def safe_seq(self, session_id: str) -> int:
        """Everything of a session up to here is durable, or given up and counted."""
        with self._changed:
            session = self._sessions.get(session_id)
            return session.safe_seq if session else 0

    def drops(self, session_id: str) -> Drops:
        """Records of a session dropped in this output so far, per stage."""
        with self._changed:
            session = self._sessions.get(session_id)
            return dict(session.drops) if session else {}

    def files(self, session_id: str) -> tuple[str, ...]:
        """Absolute paths of the files of a session."""
        with self._changed:
            session = self._sessions.get(session_id)
            return session.files if session else ()

    def _fitting(self, session: OutputSession, delivery: Delivery) -> Delivery:
        """Return the delivery, or what stands for it when there is no room; lock held."""
        limit_bytes, stage = self._queue_bytes, "sink"
        reason = f"the queue of output {self.name} is full"
        if session.block is not None and session.size_bytes > self._queue_bytes // 2:
            limit_bytes, stage = 0, "disk"  # a half for what fails; the others need room too
            reason = "more than can be kept while the output fails"
        if self._held_bytes + delivery.size_bytes > limit_bytes:
            pass
        elif self._has_share(session, delivery):
            return delivery
        else:
            reason = f"{session.owner.name} has used up its share of the queues"
        session.count_drop(delivery, stage, reason)
        if isinstance(delivery, GapDelivery) and delivery.gap.records is not None:
            session.extend_gap(delivery.gap)
        return skipped(delivery)

    def _has_share(self, session: OutputSession, delivery: Delivery) -> bool:
        if self._shares is None:
            return True
        queued = self._shares.used(session.owner.name, Resource.QUEUED_BYTES)
        limit = self._shares.limit(session.owner.name, Resource.QUEUED_BYTES)
        return queued + delivery.size_bytes <= limit

    def _hold(self, session: OutputSession, size_bytes: int) -> None:
        """Count bytes that are queued, or with a minus no longer; the lock is held."""
        self._held_bytes += size_bytes
        if self._shares is None:
            return
        if size_bytes > 0:
            self._shares.charge(session.owner.name, Resource.QUEUED_BYTES, size_bytes)
        elif size_bytes < 0:
            self._shares.give_back(session.owner.name, Resource.QUEUED_BYTES, -size_bytes)

    def _may_write(self, session: OutputSession, delivery: Delivery) -> bool:
        """Whether the owner's share of the disk holds this much more now."""
        if self._shares is None or self.owner is None or not isinstance(delivery, BatchDelivery):
            return True
        owner, size = session.owner.name, delivery.size_bytes
        return self._shares.try_take(owner, Resource.DISK_BYTES, size)

    def _later(self, errand: Callable[[], None]) -> None:
        with self._changed:
            self._errands.append(errand)
            self._wake()

    def _schedule(self, session: OutputSession, due_s: float = 0.0) -> None:
        """Have the thread look at a session; the lock is held."""
        if not session.scheduled:
            session.scheduled = True
            heapq.heappush(self._due, (due_s, next(self._order), session))
            self._wake()

    def _next_due(self, now_s: float) -> OutputSession | None:
        if not self._due or self._due[0][0] > now_s:
            return None
        _, _, session = heapq.heappop(self._due)
        session.scheduled = False
        return session
