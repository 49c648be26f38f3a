"""One output: a sink with its bounded queue, its thread, and its state of each session.

The broker's loop only appends to the :mod:`queue <msmon.daemon.outputs.session_queue>` and never
waits. The thread takes what is due, has the :mod:`writer <msmon.daemon.outputs.writer>` give it to
the sink, commits, and ends a process that has nothing to do.

A session counts as safe up to what the sink has committed, or what was given up and counted.
The agent still keeps what merely waits in this daemon's memory, unless the output holds up
others for too long (see :mod:`lag <msmon.daemon.outputs.lag>`). What is known of a session
stays until :meth:`Output.forget`: that is the one rule of retention.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msmon.bus.places import Unguarded, require_guarded
from msmon.bus.rows import EXPORT_OWNER, OutputRow
from msmon.daemon.access.owners import Owner
from msmon.daemon.outputs.delivery import BatchDelivery, ExportCheck, WindowDelivery
from msmon.daemon.outputs.export_roots import ExportRoots
from msmon.daemon.outputs.hosts import NoThread, SinkHost, ThreadHost
from msmon.daemon.outputs.lag import FIRST_RETRY_S
from msmon.daemon.outputs.output_session import OutputSession
from msmon.daemon.outputs.process import ProcessHost
from msmon.daemon.outputs.rights import Limits
from msmon.daemon.outputs.session_queue import QUEUE_BYTES, SessionQueue
from msmon.daemon.outputs.stored_progress import ProgressDirectory
from msmon.daemon.outputs.writer import SessionWriter
from msmon.errors import MsmonError, SinkError
from msmon.sessions import DropStage, merged_drops
from msmon.sinks.base import ResumableSink, Sink

IDLE_S = 30.0
"""A process without open sessions is ended after this time."""

CheckDone = Callable[["str | MsmonError"], None]
"""Called once, from the output's thread, with the directory without links or the refusal."""

_log = logging.getLogger(__name__)


class Output(SessionQueue):
    """A sink with queue, thread and sessions. Public methods may be called from any thread.

    The output's thread alone uses the host, the writer and ``_used_at_s``; the broker's loop starts
    that thread with the first thing to do. ``owner`` is whose rights a process works with; None:
    the daemon's. ``queue_bytes`` bounds everything that is not committed yet. ``below``: roots
    that its directories must lie below whenever a session is opened. Raises what the sink raises
    when it is made with these options.
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
        below: ExportRoots | None = None,
    ) -> None:
        unwanted: list[type] = [] if sink_class.WANTS_RECORDS else [BatchDelivery]
        unwanted += [] if sink_class.WANTS_WINDOWS else [WindowDelivery]
        resumable = issubclass(sink_class, ResumableSink)
        super().__init__(sink_class.NAME, owner, tuple(unwanted), queue_bytes, resumable)
        self.wants_records = sink_class.WANTS_RECORDS
        self._options = sink_class.options_in_force(options, os.environ)
        self._host: SinkHost
        if sink_class.OWN_PROCESS:
            self._host = ProcessHost(sink_class, self._options, owner, limits)
        else:
            self._host = ThreadHost(sink_class(**self._options))
        progress = progress or ProgressDirectory(None, self.name)
        self._writer = SessionWriter(self, self._host, progress, below)
        self._idle_s = idle_s
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

        if not self._later(carry_out):
            done(NoThread(self.name))

    def warn_of_open_directory(self) -> None:
        """Log where others could change the directory that this output was told to write in."""
        named = str(self._options.get("dir") or self._options.get("path") or "-")
        if named == "-":
            return
        place = Path(named).absolute()
        try:
            require_guarded(place.parent if place.is_file() else place)
        except Unguarded as error:
            _log.warning("output %s: %s; %s", self.name, error.message, error.next_step)
        except OSError as error:
            _log.warning("output %s: can't look at %s: %s", self.name, place, error.strerror)

    def forget(self, session_id: str) -> None:
        """Release all that is known of a session that was closed; nothing of it comes again."""
        if not self._later(lambda: self._writer.forget(session_id)):
            self._writer.forget(session_id)  # nobody else touches the writer

    def status(self) -> OutputRow:
        """Return what ``status`` tells of this output."""
        with self.changed:
            sessions = self.sessions.values()
            now_s = time.monotonic()
            problems = list(filter(None, (self._problem_of(item, now_s) for item in sessions)))
            return OutputRow(
                name=self.name,
                options=self._shown_options(),
                queue_bytes=self._held_bytes,
                written=dict(self._writer.written),
                windows=self._writer.windows,
                drops=merged_drops(*(session.counted_drops for session in sessions)),
                problem=problems[0] if problems else "",
            )

    def _shown_options(self) -> dict[str, str]:
        """Return the options in force; of an export whose it is, for each session has its own."""
        if self.owner is not None:
            return {EXPORT_OWNER: self.owner.name}
        return {key: str(value) for key, value in self._options.items()}

    def begin_close(self, deadline_s: float) -> None:
        """Take nothing more; what is queued is written until the (monotonic) deadline."""
        with self.changed:
            self.deadline_s = deadline_s
            self.changed.notify()

    def join(self) -> None:
        """Wait for the thread until the deadline; then end what it hangs in."""
        thread, deadline_s = self._thread, self.deadline_s
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

    def try_again(self) -> None:
        """Start the thread if something waits for it, and none could be started before."""
        with self.changed:
            if self._thread is not None:
                return
            for session in self.sessions.values():
                if session.pending:
                    self.schedule(session)

    def _wake(self) -> bool:
        if self._thread is None and self.deadline_s is None:
            name = f"output-{self.name}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # as many threads and processes as the system allows
                return False
            self._thread = thread
        self.changed.notify()
        return True

    # --- the output's thread --------------------------------------------------------------

    def _run(self) -> None:
        self._used_at_s = time.monotonic()
        while self._turn():
            pass
        self._finish()

    def _turn(self) -> bool:
        """Do what is due next, or wait for it; False when the output is to end."""
        now_s = time.monotonic()
        commit_at_s = self._writer.commit_at_s
        if commit_at_s is not None and now_s >= commit_at_s:
            self._writer.commit()
        with self.changed:
            errand = self.errands.popleft() if self.errands else None
            session = None if errand else self.next_due(now_s)
            if errand is None and session is None:
                if self.deadline_s is not None:
                    return False
                self.changed.wait(self._wait_s(now_s))
        if errand is not None:
            self._run_errand(errand)
        elif session is not None:
            self._writer.hand_over(session)
            self._used_at_s = time.monotonic()
        elif self._may_rest and now_s >= self._used_at_s + self._idle_s:
            self._rest()
        return self.deadline_s is None or time.monotonic() < self.deadline_s

    def _run_errand(self, errand: Callable[[], None]) -> None:
        try:
            errand()
        except Exception:  # noqa: BLE001 - say the daemon's loop, which takes no more answers
            _log.exception("output %s could not run an errand", self.name)
        self._used_at_s = time.monotonic()

    @property
    def _may_rest(self) -> bool:
        return self._host.running and isinstance(self._host, ProcessHost)

    def _wait_s(self, now_s: float) -> float | None:
        """How long nothing will be due; None: until something comes in. The lock is held."""
        times = [self.next_due_s, self._writer.commit_at_s]
        if self._may_rest:
            times.append(self._used_at_s + self._idle_s)
        due_s = min((time_s for time_s in times if time_s is not None), default=None)
        return None if due_s is None else max(0.0, due_s - now_s)

    def _rest(self) -> None:
        """End a process that has nothing open."""
        self._used_at_s = time.monotonic()
        with self.changed:
            open_now = any(
                session.generation == self._host.generation for session in self.sessions.values()
            )
        if not open_now:
            self._close_host()

    def _finish(self) -> None:
        """Commit and close the sink; what can't be written by the deadline is dropped."""
        self._writer.commit()
        while self.deadline_s is not None and time.monotonic() < self.deadline_s:
            with self.changed:
                pending = [item for item in self.sessions.values() if item.pending]
            if not pending:
                break
            time.sleep(FIRST_RETRY_S)
            for session in pending:
                self._writer.hand_over(session)
            self._writer.commit()
        with self.changed:
            left = {item.id: item.left_at_the_end() for item in self.sessions.values()}
            for session in self.sessions.values():
                self._count_unwritten(session)
        self._writer.note_left_behind({key: what for key, what in left.items() if what.last_seq})
        self._close_host()

    def _count_unwritten(self, session: OutputSession) -> None:
        """Count and log what is not written when the daemon ends; the lock is held."""
        for delivery in (*session.handed, *session.waiting):
            session.dropped(delivery, DropStage.DISK, "not written before the daemon ended")
        if session.pending:
            _log.error(
                "output %s of session %s ends before all is written; dropped so far: %s; an agent "
                "that lives sends again what was not acknowledged",
                *(self.name, session.id, session.counted_drops),
                extra={"owner": session.owner.name},
            )

    def _close_host(self) -> None:
        try:
            self._host.close()
        except Exception as error:  # noqa: BLE001 - a plug-in's bug must not end the thread
            _log.warning("output %s can't be closed: %s", self.name, error)
