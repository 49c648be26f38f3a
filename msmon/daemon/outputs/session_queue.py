"""What waits for one output: its sessions, when each is looked at, and how much is held.

The broker's loop puts in and the output's thread takes out, both under one lock. A delivery
that does not fit is dropped and counted, and becomes a gap in the output. Three bounds hold: that
of the queue, the share of the owner whose data it is, and in an output of all owners as much for
each as is free. The sessions of the owners are looked at in turn. So one user's flood leaves the
others room and time.
"""

from __future__ import annotations

import abc
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from msmon.accounts import OutputAccount
from msmon.daemon.access.owners import Owner
from msmon.daemon.access.shares import Resource, Shares
from msmon.daemon.outputs.delivery import (
    BatchDelivery,
    Closing,
    Delivery,
)
from msmon.daemon.outputs.hosts import NoThread
from msmon.daemon.outputs.lag import HOLD_UP_S
from msmon.daemon.outputs.output_session import OpenAnswer, OutputSession, skipped
from msmon.sessions import Drops, DropStage, SessionInfo

QUEUE_BYTES = 128 << 20

_AT_ONCE_S = -1.0
"""When a session is due whose opening somebody waits for: before all that its owner has waiting."""

_log = logging.getLogger(__name__)


class SessionQueue(abc.ABC):
    """The sessions of one output, with everything of them that is not durable yet.

    The broker's loop adds sessions, deliveries and errands; the output's thread takes them. All
    fields are guarded by ``changed``. Methods without a word on the lock take it themselves and may
    be called from any thread. ``unwanted``: types of deliveries that the sink does not want.
    ``resumable``: the sink goes on where an earlier daemon ended.
    """

    def __init__(
        self,
        name: str,
        owner: Owner | None,
        unwanted: tuple[type, ...],
        queue_bytes: int,
        resumable: bool,
    ) -> None:
        self.name = name
        self.owner = owner
        self.on_safe: Callable[[str], None] = lambda session_id: None
        """Called from the output's thread with a session's id when its ``safe_seq`` has grown."""
        self.changed = threading.Condition(threading.RLock())
        """The lock; the output's thread waits for it when nothing is due."""
        self.sessions: dict[str, OutputSession] = {}
        self.errands: deque[Callable[[], None]] = deque()
        """What else the thread is to do, before all deliveries."""
        self.deadline_s: float | None = None
        """When the daemon ends (monotonic). Once it is set, nothing more is taken."""
        self.asked_at_s: float | None = None
        """Since when the sink has not answered (monotonic); the output's thread writes it."""
        self._unwanted = unwanted
        self._queue_bytes = queue_bytes
        self._resumable = resumable
        self._shares: Shares | None = None
        self._due: dict[str, list[tuple[float, int, OutputSession]]] = {}
        """Owner → heap of its sessions to look at, by time; each is here at most once. The owner
        whose turn was last is the last one."""
        self._order = itertools.count()
        self._held_bytes = 0
        self._held_by_owner: dict[str, int] = {}

    @abc.abstractmethod
    def _wake(self) -> bool:
        """Have the thread look at what is due; the lock is held.

        False where there is no thread, and none can be started.
        """

    def count_against(self, shares: Shares) -> None:
        """Count what is queued and written against its owners' shares, from now on."""
        self._shares = shares

    def open_session(
        self, session: SessionInfo, owner: Owner, answer: Callable[[OpenAnswer], None]
    ) -> None:
        """Begin a session, or go on with one that was closed; ``answer`` is called once."""
        with self.changed:
            known = self.sessions.setdefault(
                session.session_id, OutputSession(session, owner, None, self._resumable)
            )
            known.answer = answer
            known.closing_at_s = 0.0  # its end, if that is still to be written, was not the last
            if self.schedule(known, _AT_ONCE_S):
                return
            known.answer = None
        answer(NoThread(self.name))

    def put(self, delivery: Delivery) -> None:
        """Queue a delivery. A batch or window that does not fit is dropped and counted."""
        with self.changed:
            session = self.sessions.get(delivery.session_id)
            if session is None or self.deadline_s is not None:
                return  # while the daemon ends it is left to the agent, which sends it again
            if isinstance(delivery, self._unwanted):
                delivery = skipped(delivery)
            elif not isinstance(delivery, Closing):
                delivery = self._fitting(session, delivery)
            self.hold(session, session.append(delivery))
            self.schedule(session)

    def safe_seq(self, session_id: str) -> int:
        """Everything of a session up to here is durable, or counted as dropped."""
        with self.changed:
            session = self.sessions.get(session_id)
            return session.acknowledged_seq if session else 0

    def drops(self, session_id: str) -> Drops:
        """Records of a session dropped in this output so far, per stage."""
        with self.changed:
            session = self.sessions.get(session_id)
            return session.counted_drops if session else {}

    def account(self, session_id: str) -> OutputAccount:
        """What became of the records of a session in this output so far."""
        with self.changed:
            session = self.sessions.get(session_id)
            if session is None:
                return OutputAccount(self.name)
            drops = session.counted_drops
            return OutputAccount(self.name, session.written, drops, session.continued)

    def files(self, session_id: str) -> tuple[str, ...]:
        """Absolute paths of the files of a session."""
        with self.changed:
            session = self.sessions.get(session_id)
            return session.files if session else ()

    def problem(self, session_id: str) -> str:
        """Why a session can't be written at the moment; "" when it can."""
        with self.changed:
            session = self.sessions.get(session_id)
            return self._problem_of(session, time.monotonic()) if session else ""

    def _problem_of(self, session: OutputSession, now_s: float) -> str:
        """Return what is wrong with one session: it fails, hangs or is slow; lock held."""
        silent_s = 0.0 if self.asked_at_s is None else now_s - self.asked_at_s
        if silent_s > HOLD_UP_S and session.pending:
            return f"output {self.name} has not answered for {silent_s:.0f} s"
        if session.block is not None:
            return session.block.reason
        if session.lag.behind:
            size_mib = session.size_bytes / (1 << 20)
            return f"output {self.name} is too slow: {size_mib:.1f} MiB wait for it"
        return ""

    def held_up_s(self, session_id: str, now_s: float) -> float:
        """How long this output has held up the others of a session; 0: it does not, or no more."""
        with self.changed:
            session = self.sessions.get(session_id)
            if session is None or session.lag.behind:
                return 0.0
            return session.lag.held_up_s(session.size_bytes, now_s)

    def leave_behind(self, session_id: str) -> None:
        """Have nobody wait for this output in a session until it has caught up."""
        with self.changed:
            session = self.sessions.get(session_id)
            if session is None:
                return
            session.leave_behind()
            problem = self._problem_of(session, time.monotonic())
            dropped = session.lag.drops
        _log.error(
            "output %s of session %s is left behind: %s; counted as dropped until written: %s",
            *(self.name, session_id, problem, dropped),
            extra={"owner": session.owner.name},
        )
        self.on_safe(session_id)

    def _fitting(self, session: OutputSession, delivery: Delivery) -> Delivery:
        """Return the delivery, or what stands for it when there is no room; lock held."""
        limit_bytes, stage = self._queue_bytes, DropStage.SINK
        reason = f"the queue of output {self.name} is full"
        if session.block is not None and session.size_bytes > self._queue_bytes // 2:
            # a half for what fails; the others need room too
            limit_bytes, stage = 0, DropStage.DISK
            reason = "more than can be kept while the output fails"
        if self._held_bytes + delivery.size_bytes > limit_bytes:
            pass
        elif self._has_share(session, delivery):
            return delivery
        else:
            reason = f"{session.owner.name} has used up its share of the queues"
        return session.dropped(delivery, stage, reason)

    def _has_share(self, session: OutputSession, delivery: Delivery) -> bool:
        """Whether the owner may have so much waiting.

        In an output of all owners nobody may hold more than is free. So one alone gets a half of
        the queue, and the next one who comes always finds room.
        """
        if self.owner is None:
            held = self._held_by_owner.get(session.owner.name, 0)
            if held + delivery.size_bytes > self._queue_bytes - self._held_bytes:
                return False
        if self._shares is None:
            return True
        queued = self._shares.used(session.owner.name, Resource.QUEUED_BYTES)
        limit = self._shares.limit(session.owner.name, Resource.QUEUED_BYTES)
        return queued + delivery.size_bytes <= limit

    def hold(self, session: OutputSession, size_bytes: int) -> None:
        """Count bytes that are queued, or with a minus no longer; the lock is held."""
        self._held_bytes += size_bytes
        name = session.owner.name
        held = self._held_by_owner.pop(name, 0) + size_bytes
        if held > 0:
            self._held_by_owner[name] = held
        if self._shares is None:
            return
        if size_bytes > 0:
            self._shares.charge(name, Resource.QUEUED_BYTES, size_bytes)
        elif size_bytes < 0:
            self._shares.give_back(name, Resource.QUEUED_BYTES, -size_bytes)

    def may_write(self, session: OutputSession, delivery: Delivery) -> bool:
        """Whether the owner's share of the disk holds this much more now."""
        if self._shares is None or self.owner is None or not isinstance(delivery, BatchDelivery):
            return True
        owner, size = session.owner.name, delivery.size_bytes
        return self._shares.try_take(owner, Resource.DISK_BYTES, size)

    @property
    def somebody_waits(self) -> bool:
        """Whether something is due that somebody waits for; the lock is held."""
        return bool(self.errands) or self.next_due_s == _AT_ONCE_S

    @property
    def next_due_s(self) -> float | None:
        """When the next session is due (monotonic), None: nothing is; the lock is held."""
        return min((sessions[0][0] for sessions in self._due.values()), default=None)

    def _later(self, errand: Callable[[], None]) -> bool:
        """Have the thread run an errand. False, and nothing is kept, where there is no thread."""
        with self.changed:
            self.errands.append(errand)
            if self._wake():
                return True
            self.errands.pop()
            return False

    def schedule(self, session: OutputSession, due_s: float | None = None) -> bool:
        """Have the thread look at a session at ``due_s`` (monotonic), None: now; lock held.

        Now is a time as well, and no earlier one: a session that is tried again after an error
        would never get its turn otherwise, while others keep the output busy. False where there is
        no thread: the next delivery, or ``Output.try_again``, tries it again.
        """
        if session.scheduled:
            return True
        session.scheduled = True
        when_s = time.monotonic() if due_s is None else due_s
        due = self._due.setdefault(session.owner.name, [])
        heapq.heappush(due, (when_s, next(self._order), session))
        if self._wake():
            return True
        session.scheduled = False
        self._due.clear()  # it was the only one: nothing is scheduled without a thread
        return False

    def next_due(self, now_s: float) -> OutputSession | None:
        """Take the next session whose time has come, of another owner if there is one; lock held.

        Where A has many sessions due and B one, the turns are A, B, A, A, …
        """
        owner = next((name for name, due in self._due.items() if due[0][0] <= now_s), None)
        if owner is None:
            return None
        sessions = self._due.pop(owner)
        _, _, session = heapq.heappop(sessions)
        if sessions:
            self._due[owner] = sessions
        session.scheduled = False
        return session
