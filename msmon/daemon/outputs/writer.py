"""How the deliveries of an output's sessions get into its sink, and what follows an error.

The writer opens a session in the sink, gives it what waits, and commits. A full disk, a locked
file or a process that died blocks only the sessions that it concerns: what the sink has not
committed of them is kept and given again later. Only a session that has ended and still fails
after a minute is given up: its records are counted as dropped, and the files say so as soon as
they can be written again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from msmon.bounds import added
from msmon.daemon.outputs.delivery import (
    Answer,
    BatchDelivery,
    Commit,
    Committed,
    Delivery,
    Forgetting,
    Opening,
    Request,
    WindowDelivery,
)
from msmon.daemon.outputs.export_roots import ExportRoots
from msmon.daemon.outputs.hosts import HostEnded, SinkHost
from msmon.daemon.outputs.lag import LAST_RETRY_S, Block, LeftBehind
from msmon.daemon.outputs.output_session import OpenAnswer, OutputSession
from msmon.daemon.outputs.session_queue import SessionQueue
from msmon.daemon.outputs.stored_progress import ProgressDirectory
from msmon.errors import MsmonError, SinkError
from msmon.records.kinds import ActivityKind
from msmon.sessions import DropStage
from msmon.sinks.base import SessionOutput

COMMIT_INTERVAL_S = 0.25
COMMIT_BYTES = 8 << 20
GIVE_UP_AFTER_S = 60.0
"""A session that has ended and still can't be written is given up after this time."""

SHARE_RETRY_S = 0.1
"""An owner that has used up its share of the disk waits so long for more."""

_log = logging.getLogger(__name__)


class SessionWriter:
    """Writes the sessions of a queue into a sink. Everything here runs on the output's thread.

    ``host`` is where the sink lives. What the broker's loop may read or change meanwhile, the
    sessions and ``written``, is touched under the queue's lock only. ``below``: see
    :class:`Opening <msmon.daemon.outputs.delivery.Opening>`; None: any place.
    """

    def __init__(
        self,
        queue: SessionQueue,
        host: SinkHost,
        progress: ProgressDirectory,
        below: ExportRoots | None = None,
    ) -> None:
        self.written: dict[str, int] = {}
        """Kind → records that the sink has committed."""
        self.windows = 0
        """Windows that the sink has committed."""
        self.commit_at_s: float | None = None
        """When the next commit is due (monotonic); None: there is nothing to commit."""
        self._queue = queue
        self._changed = queue.changed
        self._host = host
        self._progress = progress
        self._below = below
        self._uncommitted_bytes = 0

    def hand_over(self, session: OutputSession) -> None:
        """Give the sink what waits of a session, up to the size of a commit."""
        with self._changed:
            if not session.waiting and session.answer is None:
                return  # done meanwhile; to open it now would open a complete file again
        if self._is_hopeless(session):
            self._give_up(session, "the output failed for too long")
            return
        if session.suspect:
            self.commit()  # what the others have handed over must not hang with it
        try:
            self._ensure_open(session)
            if not self._give_waiting(session):
                return
        except (SinkError, OSError) as error:
            self._block(session, error)
        if session.suspect:
            self.commit()
        with self._changed:
            if session.block is None and session.waiting and not session.at_its_end:
                self._queue.schedule(session)

    def commit(self) -> None:
        """Make what the sink has taken durable, and report it session by session."""
        self._uncommitted_bytes, self.commit_at_s = 0, None
        with self._changed:
            touched = [session for session in self._queue.sessions.values() if session.handed]
            for session in touched:
                session.uncertain_seq = session.handed[-1].seq
        if not touched:
            return
        failure: Exception | None = None
        try:
            committed = self._ask(Commit())
            assert isinstance(committed, Committed)
        except Exception as error:  # noqa: BLE001 - a plug-in's bug must not end the thread
            failure = error
            committed = Committed({}, {session.id: str(error) for session in touched})
        if isinstance(failure, HostEnded) and failure.hung and len(touched) > 1:
            for session in touched:
                session.suspect = True
            failure = None
        with self._changed:
            for session_id, files in committed.files.items():
                if session_id in self._queue.sessions:
                    self._queue.sessions[session_id].files = files
        for session in touched:
            reason = committed.failed.get(session.id, "")
            if session.generation != self._host.generation:
                reason = reason or "the process of the output ended"
            if reason:
                self._block(session, failure or SinkError(reason))
            else:
                self._release(session)

    def _ask(self, request: Request) -> Answer:
        """Ask the sink, and have the queue know since when it has not answered."""
        self._queue.asked_at_s = time.monotonic()
        try:
            return self._host.ask(request)
        finally:
            self._queue.asked_at_s = None

    def forget(self, session_id: str) -> None:
        """Release all that is known of a session that was closed."""
        with self._changed:
            session = self._queue.sessions.pop(session_id, None)
            if session is None:
                return
            self._queue.hold(session, -session.size_bytes)
        self._progress.forget(session_id)
        if self._host.running:
            try:
                self._ask(Forgetting(session_id))
            except Exception as error:  # noqa: BLE001 - a plug-in's bug must not end the thread
                _log.warning(
                    "session %s can't be forgotten: %s", session_id, error, extra=_owner(session)
                )

    # --- opening --------------------------------------------------------------------------

    def _ensure_open(self, session: OutputSession) -> None:
        """Open a session in the sink where it is not; raises SinkError or OSError."""
        try:
            self._host.ready()
            if session.generation == self._host.generation:
                self._answer(session, session.files)
                return
            with self._changed:
                session.take_back()
            below = None if self._below is None else self._below.paths
            progress = self._progress.of(session.id)
            session.has_file |= bool(progress.value)  # an earlier daemon has opened it
            if not session.was_open:
                session.left = self._progress.left_behind(session.id)
                session.has_note = bool(session.left.last_seq)
            opening = Opening(session.info, progress, below)
            opened = self._ask(opening)
            assert isinstance(opened, SessionOutput)
        except Exception as error:
            failure = error if isinstance(error, MsmonError) else SinkError(str(error))
            self._answer(session, failure)
            raise failure if isinstance(failure, SinkError) else SinkError(str(error)) from error
        with self._changed:
            session.opened(opened, self._host.generation)
        self._answer(session, opened.files)

    def _answer(self, session: OutputSession, answer: OpenAnswer) -> None:
        with self._changed:
            told, session.answer = session.answer, None
        if told is not None:
            told(answer)

    # --- giving ---------------------------------------------------------------------------

    def _give_waiting(self, session: OutputSession) -> bool:
        """Give what waits, up to the next commit, so that other sessions get their turn.

        False where the owner's share of the disk is used up for now.
        """
        while (delivery := self._next_of(session)) is not None:
            if not self._queue.may_write(session, delivery):
                with self._changed:
                    self._queue.schedule(session, time.monotonic() + SHARE_RETRY_S)
                return False
            self._give(session, delivery)
            if self._uncommitted_bytes >= COMMIT_BYTES:
                self.commit_at_s = 0.0
            if self.commit_at_s is not None and self.commit_at_s <= time.monotonic():
                break
            with self._changed:
                if self._queue.somebody_waits:
                    break
        return True

    def _next_of(self, session: OutputSession) -> Delivery | None:
        with self._changed:
            return session.take_next()

    def _give(self, session: OutputSession, delivery: Delivery) -> None:
        """Give one delivery to the sink. Raises SinkError or OSError."""
        try:
            if session.is_new(delivery):
                self._ask(delivery)
        except (SinkError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - a plug-in's bug costs this delivery only
            _log.error(
                "%s of session %s failed: %r",
                type(delivery).__name__,
                session.id,
                error,
                extra=_owner(session),
            )
            with self._changed:
                stage = DropStage.DECODE if isinstance(error, ValueError) else DropStage.DISK
                self._queue.hold(session, -session.drop_first(stage, str(error)))
            return
        with self._changed:
            session.handed_over(delivery)
        self._uncommitted_bytes += delivery.size_bytes
        if self.commit_at_s is None:
            self.commit_at_s = time.monotonic() + COMMIT_INTERVAL_S

    # --- after a commit or an error -------------------------------------------------------

    def _release(self, session: OutputSession) -> None:
        """What the sink has taken of a session is durable: count it, and tell the broker."""
        with self._changed:
            if session.block is not None:
                _log.warning(
                    "output %s of session %s works again",
                    self._queue.name,
                    session.id,
                    extra=_owner(session),
                )
            before_bytes = session.size_bytes
            for delivery in session.release():
                if isinstance(delivery, BatchDelivery):
                    kind = ActivityKind(delivery.kind).name
                    self.written[kind] = added(self.written.get(kind, 0), delivery.count)
                    session.written = added(session.written, delivery.count)
                elif isinstance(delivery, WindowDelivery):
                    self.windows = added(self.windows, 1)
            self._queue.hold(session, session.size_bytes - before_bytes)
            if session.waiting:
                self._queue.schedule(session)
        if session.has_note:  # what it tells of came before all that is durable now
            session.has_note = False
            self._progress.forget_left_behind(session.id)
        self._queue.on_safe(session.id)

    def note_left_behind(self, left: Mapping[str, LeftBehind]) -> None:
        """Keep for the next daemon what of each session was acknowledged and is not written."""
        for session_id, what in left.items():
            try:
                self._progress.keep_left_behind(session_id, what)
            except SinkError as error:
                _log.warning("what session %s lost can't be noted: %s", session_id, error.message)

    def _block(self, session: OutputSession, error: Exception) -> None:
        """Keep what is not durable for later; the sink will be asked to open the session anew."""
        now_s = time.monotonic()
        reason = error.message if isinstance(error, MsmonError) else str(error)
        if session.closing_at_s and not session.has_file:
            self._give_up(session, "the output could never be opened")
            return
        with self._changed:
            session.take_back()
            if session.block is None:
                name = self._queue.name
                _log.warning(
                    "output %s of session %s fails: %s",
                    name,
                    session.id,
                    reason,
                    extra=_owner(session),
                )
                session.block = Block(now_s, reason)
            session.block.reason = reason
            hung = isinstance(error, HostEnded) and error.hung
            self._queue.schedule(session, now_s + session.block.next_delay_s(hung))

    def _is_hopeless(self, session: OutputSession) -> bool:
        closing_s = session.closing_at_s
        return bool(session.block and closing_s and time.monotonic() > closing_s + GIVE_UP_AFTER_S)

    def _give_up(self, session: OutputSession, reason: str) -> None:
        """Drop and count what is not durable of a session, so that the agent need not keep it."""
        with self._changed:
            self._queue.hold(session, -session.give_up(DropStage.DISK, reason))
            if session.waiting:
                self._queue.schedule(session, time.monotonic() + LAST_RETRY_S)
            dropped = session.drops.get(DropStage.DISK) or 0
        name = self._queue.name
        _log.error(
            "output %s gives session %s up: %s; %d records dropped",
            name,
            session.id,
            reason,
            dropped,
            extra=_owner(session),
        )
        self._queue.on_safe(session.id)


def _owner(session: OutputSession) -> dict[str, str]:
    """Return what a log line of a session carries, so that it counts against its owner's share."""
    return {"owner": session.owner.name}
