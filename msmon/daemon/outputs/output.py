"""One output: a sink with its bounded queue, its thread, and its state of each session.

The broker's loop only appends to the queue and never waits. The thread hands deliveries to
the sink, commits, and tries again after errors. A full disk, a locked file or a process that
died blocks only the sessions it concerns: their deliveries are kept and handed in again, and
only what exceeds the bounds is dropped, counted, and noted in the output as a gap.

A session counts as safe up to what the sink has committed, or what was given up and counted;
what merely waits in this daemon's memory is still kept by the agent. What is known of a
session stays until :meth:`Output.forget`: that is the one rule of retention.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from msmon.daemon.access.owners import Owner
from msmon.daemon.outputs.delivery import (
    BatchDelivery,
    Closing,
    Commit,
    Committed,
    Delivery,
    ExportCheck,
    Forgetting,
    GapDelivery,
    Opening,
    Skipped,
    WindowDelivery,
    kind_and_count,
)
from msmon.daemon.outputs.hosts import HostEnded, SinkHost, ThreadHost
from msmon.daemon.outputs.process import ProcessHost
from msmon.daemon.outputs.progress import ProgressDirectory
from msmon.daemon.outputs.rights import Limits
from msmon.daemon.outputs.session import (
    FIRST_RETRY_S,
    LAST_RETRY_S,
    Block,
    OpenAnswer,
    OutputSession,
    skipped,
)
from msmon.daemon.outputs.session_queue import QUEUE_BYTES, SessionQueue
from msmon.errors import MsmonError, SinkError
from msmon.sinks.base import SessionOutput, Sink

COMMIT_INTERVAL_S = 0.25
COMMIT_BYTES = 8 << 20
GIVE_UP_AFTER_S = 60.0
"""A session that has ended and still can't be written is given up after this time."""

HUNG_RETRY_S = 30.0
"""A session in whose call the process hung is not tried again sooner."""

SHARE_RETRY_S = 0.1
"""An owner that has used up its share of the disk waits so long for more."""

IDLE_S = 30.0
"""A process without open sessions is ended after this time."""

CheckDone = Callable[["str | MsmonError"], None]
"""Called once, from the output's thread, with the directory without links or the refusal."""

_log = logging.getLogger(__name__)


class Output(SessionQueue):
    """A sink with queue, thread and sessions. Public methods may be called from any thread.

    ``on_safe(session_id)`` is called from the output's thread whenever ``safe_seq`` of the
    session has grown. ``owner`` is whose rights a process works with; None: the daemon's.
    ``queue_bytes`` bounds everything not yet committed. Raises what the sink raises when it
    is made with these options.
    """

    def __init__(
        self,
        sink_class: type[Sink],
        options: Mapping[str, Any],
        *,
        owner: Owner | None = None,
        limits: Limits | None = None,
        progress: ProgressDirectory | None = None,
        queue_bytes: int = QUEUE_BYTES,
        idle_s: float = IDLE_S,
    ) -> None:
        unwanted: list[type] = [] if sink_class.WANTS_RECORDS else [BatchDelivery]
        unwanted += [] if sink_class.WANTS_WINDOWS else [WindowDelivery]
        super().__init__(sink_class.NAME, owner, tuple(unwanted), queue_bytes)
        self.wants_records = sink_class.WANTS_RECORDS
        self.on_safe: Callable[[str], None] = lambda session_id: None
        self._options = sink_class.options_in_force(options, os.environ)
        self._host: SinkHost
        if sink_class.OWN_PROCESS:
            self._host = ProcessHost(sink_class, self._options, owner, limits)
        else:
            self._host = ThreadHost(sink_class(**self._options))
        self._progress = progress or ProgressDirectory(None, self.name)
        self._idle_s = idle_s
        self._written: dict[str, int] = {}
        self._uncommitted_bytes = 0
        self._commit_at_s: float | None = None
        self._used_at_s = 0.0
        self._thread: threading.Thread | None = None

    # --- from the broker's loop -----------------------------------------------------------

    def check(
        self, request: ExportCheck, done: CheckDone, prepare: Callable[[], None] = lambda: None
    ) -> None:
        """Have the sink's process check an export directory, after ``prepare`` was called."""

        def carry_out() -> None:
            answer: str | MsmonError
            try:
                prepare()
                answer = str(self._host.ask(request))
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told
                answer = error if isinstance(error, MsmonError) else SinkError(str(error))
            done(answer)

        self._later(carry_out)

    def forget(self, session_id: str) -> None:
        """Release all that is known of a session that was closed; nothing of it comes again."""
        self._later(lambda: self._forget(session_id))

    def status(self) -> dict[str, Any]:
        """Facts for ``status``; ``written`` and ``drops`` count records."""
        with self._changed:
            totals: dict[str, int] = {}
            problems = []
            for session in self._sessions.values():
                for stage, count in session.drops.items():
                    totals[stage] = totals.get(stage, 0) + count
                if session.block is not None:
                    problems.append(session.block.reason)
            return {
                "name": self.name,
                "owner": self.owner.name if self.owner else "",
                "options": {key: str(value) for key, value in self._options.items()},
                "queue_bytes": self._held_bytes,
                "written": dict(self._written),
                "drops": totals,
                "problem": problems[0] if problems else "",
            }

    def begin_close(self, deadline_s: float) -> None:
        """Take nothing more; what is queued is written until the (monotonic) deadline."""
        with self._changed:
            self._deadline_s = deadline_s
            self._changed.notify()

    def join(self) -> None:
        """Wait for the thread until the deadline; then end what it hangs in."""
        thread, deadline_s = self._thread, self._deadline_s
        if thread is None or deadline_s is None:
            return
        thread.join(max(0.0, deadline_s - time.monotonic()) + FIRST_RETRY_S)
        if thread.is_alive():
            self._host.kill()
            thread.join(FIRST_RETRY_S)

    def close(self, timeout_s: float) -> None:
        """Write what is queued within the time-out; the rest is counted as dropped."""
        self.begin_close(time.monotonic() + timeout_s)
        self.join()

    def _wake(self) -> None:
        if self._thread is None and self._deadline_s is None:
            name = f"output-{self.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._changed.notify()

    # --- the output's thread --------------------------------------------------------------

    def _run(self) -> None:
        self._used_at_s = time.monotonic()
        while self._turn():
            pass
        self._finish()

    def _turn(self) -> bool:
        """Do what is due next, or wait for it; False when the output is to end."""
        now_s = time.monotonic()
        if self._commit_at_s is not None and now_s >= self._commit_at_s:
            self._commit()
        with self._changed:
            errand = self._errands.popleft() if self._errands else None
            session = None if errand else self._next_due(now_s)
            if errand is None and session is None:
                if self._deadline_s is not None:
                    return False
                self._changed.wait(self._wait_s(now_s))
        if errand is not None:
            try:
                errand()
            except Exception:  # noqa: BLE001 - say the daemon's loop, which takes no more answers
                _log.exception("output %s could not run an errand", self.name)
            self._used_at_s = time.monotonic()
        elif session is not None:
            self._hand_over(session)
            self._used_at_s = time.monotonic()
        elif self._may_rest and now_s >= self._used_at_s + self._idle_s:
            self._rest()
        return self._deadline_s is None or time.monotonic() < self._deadline_s

    @property
    def _may_rest(self) -> bool:
        return self._host.running and isinstance(self._host, ProcessHost)

    def _wait_s(self, now_s: float) -> float | None:
        times = [self._due[0][0]] if self._due else []
        if self._commit_at_s is not None:
            times.append(self._commit_at_s)
        if self._may_rest:
            times.append(self._used_at_s + self._idle_s)
        return max(0.0, min(times) - now_s) if times else None

    def _hand_over(self, session: OutputSession) -> None:
        """Give the sink what waits of a session, up to the size of a commit."""
        with self._changed:
            if not session.waiting and session.answer is None:
                return  # done meanwhile; to open it now would open a complete file again
        if self._is_hopeless(session):
            self._give_up(session, "the output failed for too long")
            return
        try:
            self._ensure_open(session)
            while (delivery := self._next_of(session)) is not None:
                if not self._may_write(session, delivery):
                    with self._changed:
                        self._schedule(session, time.monotonic() + SHARE_RETRY_S)
                    return
                self._give(session, delivery)
                if self._uncommitted_bytes >= COMMIT_BYTES:
                    self._commit_at_s = 0.0
                    break
                if self._errands:  # somebody waits for the answer
                    break
        except (SinkError, OSError) as error:
            self._block(session, error)
        with self._changed:
            if session.block is None and session.waiting and not session.at_its_end:
                self._schedule(session)

    def _is_hopeless(self, session: OutputSession) -> bool:
        closing_s = session.closing_at_s
        return bool(session.block and closing_s and time.monotonic() > closing_s + GIVE_UP_AFTER_S)

    def _ensure_open(self, session: OutputSession) -> None:
        """Open a session in the sink where it is not; raises SinkError or OSError."""
        try:
            self._host.ready()
            if session.generation == self._host.generation:
                self._answer(session, session.files)
                return
            with self._changed:
                session.take_back()
            opened = self._host.ask(Opening(session.info, self._progress.of(session.id)))
            assert isinstance(opened, SessionOutput)
        except Exception as error:
            failure = error if isinstance(error, MsmonError) else SinkError(str(error))
            self._answer(session, failure)
            raise failure if isinstance(failure, SinkError) else SinkError(str(error)) from error
        with self._changed:
            session.generation = self._host.generation
            session.was_open = True
            session.files = opened.files
            session.written_seq = session.handed_seq = opened.written_seq
            session.taken_seq = max(session.taken_seq, opened.written_seq)
            session.block = None if not session.pending else session.block
        self._answer(session, opened.files)

    def _answer(self, session: OutputSession, answer: OpenAnswer) -> None:
        with self._changed:
            told, session.answer = session.answer, None
        if told is not None:
            told(answer)

    def _next_of(self, session: OutputSession) -> Delivery | None:
        with self._changed:
            return session.take_next()

    def _give(self, session: OutputSession, delivery: Delivery) -> None:
        """Give one delivery to the sink. Raises SinkError or OSError."""
        instead: Delivery | None = None
        new = delivery.seq > session.written_seq or isinstance(delivery, Closing)
        if isinstance(delivery, GapDelivery) and delivery.found_here:
            new = True
        try:
            if new and not isinstance(delivery, Skipped):
                self._host.ask(delivery)
        except (SinkError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - a plug-in's bug costs this delivery only
            _log.error("%s of session %s failed: %r", type(delivery).__name__, session.id, error)
            instead = skipped(delivery)
            with self._changed:
                stage = "decode" if isinstance(error, ValueError) else "disk"
                session.count_drop(delivery, stage, str(error))
                self._hold(session, instead.size_bytes - delivery.size_bytes)
        with self._changed:
            session.handed_over(delivery, instead)
        self._uncommitted_bytes += delivery.size_bytes
        if self._commit_at_s is None:
            self._commit_at_s = time.monotonic() + COMMIT_INTERVAL_S

    def _commit(self) -> None:
        """Make what the sink has taken durable, and report it session by session."""
        self._uncommitted_bytes, self._commit_at_s = 0, None
        with self._changed:
            touched = [session for session in self._sessions.values() if session.handed]
        if not touched:
            return
        try:
            committed = self._host.ask(Commit())
            assert isinstance(committed, Committed)
        except Exception as error:  # noqa: BLE001 - a plug-in's bug must not end the thread
            committed = Committed({}, {session.id: str(error) for session in touched})
        with self._changed:
            for session_id, files in committed.files.items():
                if session_id in self._sessions:
                    self._sessions[session_id].files = files
        for session in touched:
            reason = committed.failed.get(session.id, "")
            if session.generation != self._host.generation:
                reason = reason or "the process of the output ended"
            if reason:
                self._block(session, SinkError(reason))
            else:
                self._release(session)

    def _release(self, session: OutputSession) -> None:
        with self._changed:
            if session.block is not None:
                _log.warning("output %s of session %s works again", self.name, session.id)
            before_bytes = session.size_bytes
            for delivery in session.release():
                records = kind_and_count(delivery)
                if records is not None:
                    kind, count = records
                    self._written[kind] = self._written.get(kind, 0) + count
            self._hold(session, session.size_bytes - before_bytes)
            if session.waiting:
                self._schedule(session)
        self.on_safe(session.id)

    def _block(self, session: OutputSession, error: Exception) -> None:
        """Keep what is not durable for later; the sink will be asked to open the session anew."""
        now_s = time.monotonic()
        reason = error.message if isinstance(error, MsmonError) else str(error)
        if session.closing_at_s and not session.was_open:
            self._give_up(session, "the output could never be opened")
            return
        with self._changed:
            session.take_back()
            if session.block is None:
                _log.warning("output %s of session %s fails: %s", self.name, session.id, reason)
                session.block = Block(now_s, reason)
            block = session.block
            block.reason = reason
            delay_s = HUNG_RETRY_S if isinstance(error, HostEnded) and error.hung else 0.0
            self._schedule(session, now_s + max(delay_s, block.retry_delay_s))
            block.retry_delay_s = min(2 * block.retry_delay_s, LAST_RETRY_S)

    def _give_up(self, session: OutputSession, reason: str) -> None:
        _log.error("output %s gives session %s up: %s", self.name, session.id, reason)
        with self._changed:
            self._hold(session, -session.give_up("disk", reason))
        self.on_safe(session.id)

    def _forget(self, session_id: str) -> None:
        with self._changed:
            session = self._sessions.pop(session_id, None)
            if session is None:
                return
            self._hold(session, -session.size_bytes)
        self._progress.forget(session_id)
        if self._host.running:
            try:
                self._host.ask(Forgetting(session_id))
            except Exception as error:  # noqa: BLE001 - a plug-in's bug must not end the thread
                _log.warning("session %s can't be forgotten: %s", session_id, error)

    def _rest(self) -> None:
        """End a process that has nothing open."""
        self._used_at_s = time.monotonic()
        with self._changed:
            open_now = any(
                session.generation == self._host.generation for session in self._sessions.values()
            )
        if not open_now:
            self._close_host()

    def _finish(self) -> None:
        """Commit and close the sink; what can't be written by the deadline is dropped."""
        self._commit()
        while self._deadline_s is not None and time.monotonic() < self._deadline_s:
            with self._changed:
                pending = [item for item in self._sessions.values() if item.pending]
            if not pending:
                break
            time.sleep(FIRST_RETRY_S)
            for session in pending:
                self._hand_over(session)
            self._commit()
        with self._changed:
            for session in self._sessions.values():
                for delivery in (*session.handed, *session.waiting):
                    session.count_drop(delivery, "disk", "not written before the daemon ended")
        self._close_host()

    def _close_host(self) -> None:
        try:
            self._host.close()
        except Exception as error:  # noqa: BLE001 - a plug-in's bug must not end the thread
            _log.warning("output %s can't be closed: %s", self.name, error)
