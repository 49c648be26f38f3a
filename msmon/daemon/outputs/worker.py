"""The worker of one output: hands tasks to the sink, commits, tries again after errors.

Every task is kept until it is committed. A full disk, a locked file or a dead sink
process blocks only the sessions it concerns; their tasks are handed in again later,
and only what exceeds the memory bound is dropped, and counted.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from msmon.daemon.outputs.calls import SinkCalls
from msmon.errors import SinkError
from msmon.sessions import Gap, SessionInfo
from msmon.sinks.base import CommitFailed, SessionOutput

COMMIT_INTERVAL_S = 0.25
COMMIT_BYTES = 8 << 20
FIRST_RETRY_S = 0.1
LAST_RETRY_S = 2.0
RELEASE_AFTER_S = 2.0
"""A session blocked for longer counts as handled up to its last kept task, so that its
stream (and with it the live statistics) goes on while, say, a disk is full."""

GIVE_UP_AFTER_S = 60.0
"""A session that has ended and still can't be written is given up after this time."""

FORGET_AFTER_S = 5.0
"""After this time the agent surely knows that the end of its session is safe, and sends nothing
of it again."""

TASK_BYTES = 256
"""What a task without payload is counted as."""

_log = logging.getLogger(__name__)


@dataclass
class Task:
    """One call to a sink: a method of ``SinkCalls``, or "skip" for what it doesn't want."""

    method: str
    session_id: str
    seq: int
    arguments: tuple[Any, ...] = ()
    size_bytes: int = TASK_BYTES
    records: tuple[str, int] | None = None
    """Kind name and number of records, of a batch."""


class Report(Protocol):
    """Where a worker tells what happened."""

    def opened(self, session_id: str, answer: SessionOutput | Exception) -> None:
        """The session was opened, or (the first time only) could not be."""

    def committed(self, session_id: str, seq: int, tasks: list[Task]) -> None:
        """Everything up to ``seq`` is durable or given up; ``tasks`` are released."""

    def files(self, session_id: str, paths: tuple[str, ...]) -> None:
        """The session is written to these files by now."""

    def handled(self, session_id: str, seq: int) -> None:
        """Everything up to ``seq`` is kept in memory until the output works again."""

    def dropped(self, task: Task, stage: str, reason: str) -> None:
        """The task was given up and is released."""

    def take_gap(self, session_id: str) -> Gap | None:
        """Return what was dropped of this session since the last call."""

    def problem(self, text: str) -> None:
        """The output fails for this reason; empty: it works again."""


@dataclass
class _Session:
    """A session as its worker sees it: what is not committed yet, and why not."""

    info: SessionInfo
    tasks: deque[Task] = field(default_factory=deque)
    size_bytes: int = 0
    handed: int = 0
    """How many of ``tasks`` the sink has taken since the last commit."""
    last_seq: int = 0
    """Last sequence number that arrived; right after a restart, the last one written."""
    written_seq: int = 0
    output: SessionOutput | None = None
    generation: int = -1
    """Generation of the sink that has this session open; -1: none."""
    blocked_since_s: float = 0.0
    retry_at_s: float = 0.0
    retry_delay_s: float = FIRST_RETRY_S
    ended_at_s: float = 0.0

    @property
    def id(self) -> str:
        return self.info.session_id


class SinkWorker:
    """Drives one sink. Used from a single thread; times are monotonic seconds."""

    def __init__(self, calls: SinkCalls, report: Report, backlog_bytes: int) -> None:
        self._calls = calls
        self._report = report
        self._backlog_bytes = backlog_bytes
        self._sessions: dict[str, _Session] = {}
        self._forget_at_s: dict[str, float] = {}
        self._uncommitted_bytes = 0
        self._uncommitted_since_s = 0.0

    def take(self, task: Task) -> None:
        """Hand a task to the sink, or keep it while its session is blocked."""
        if task.method == "open_session" and task.session_id not in self._sessions:
            self._sessions[task.session_id] = _Session(task.arguments[0])
            self._forget_at_s.pop(task.session_id, None)
        session = self._sessions.get(task.session_id)
        if session is None:
            self._report.dropped(task, "sink", "the session is not open in this output")
            self._report.committed(task.session_id, task.seq, [])
            return
        self._keep(session, task)
        if not session.blocked_since_s:
            self._hand_over(session)
        elif session.output is None and session.ended_at_s:
            self._give_up(session, "the output could never be opened")
        elif time.monotonic() - session.blocked_since_s > RELEASE_AFTER_S:
            self._report.handled(session.id, session.last_seq)
        if self._uncommitted_bytes >= COMMIT_BYTES:
            self.commit()

    def wait_s(self) -> float | None:
        """Return the seconds until ``tick`` has something to do; None: nothing pending."""
        times = [
            item.retry_at_s
            for item in self._sessions.values()
            if item.blocked_since_s and not item.handed
        ]
        if self._uncommitted_since_s:
            times.append(self._uncommitted_since_s + COMMIT_INTERVAL_S)
        times += self._forget_at_s.values()
        return max(0.0, min(times) - time.monotonic()) if times else None

    def tick(self) -> None:
        """Try blocked sessions again and commit, where it is time to."""
        now_s = time.monotonic()
        for session in list(self._sessions.values()):
            if session.blocked_since_s and not session.handed and now_s >= session.retry_at_s:
                if session.ended_at_s and now_s > session.ended_at_s + GIVE_UP_AFTER_S:
                    self._give_up(session, "the output failed for too long")
                else:
                    self._hand_over(session)
        since_s = self._uncommitted_since_s
        if since_s and now_s >= since_s + COMMIT_INTERVAL_S:
            self.commit()
        self._forget([item for item, at_s in self._forget_at_s.items() if now_s >= at_s])

    def commit(self) -> None:
        """Make what the sink has taken durable and report it, session by session."""
        self._uncommitted_bytes, self._uncommitted_since_s = 0, 0.0
        touched = [session for session in self._sessions.values() if session.handed]
        if not touched:
            return
        failed: dict[str, str] = {}
        try:
            for session_id, paths in (self._calls.commit() or {}).items():
                self._report.files(session_id, paths)
        except CommitFailed as error:
            failed = error.sessions
        except Exception as error:  # noqa: BLE001 - a plug-in's bug must not end the worker
            failed = dict.fromkeys(self._sessions, str(error))
        for session in touched:
            if session.generation != self._calls.generation:
                failed.setdefault(session.id, "the process of the output ended")
            if session.id in failed:
                self._block(session, failed[session.id])
            else:
                self._release(session)

    def finish(self, deadline_s: float) -> None:
        """Commit and close the sink; what can't be written by the deadline is dropped."""
        self.commit()
        while any(item.tasks for item in self._sessions.values()):
            if time.monotonic() >= deadline_s:
                break
            time.sleep(FIRST_RETRY_S)
            self.tick()
            self.commit()
        for session in list(self._sessions.values()):
            for task in session.tasks:
                self._report.dropped(task, "disk", "not written before the daemon ended")
        self._forget(list(self._forget_at_s))
        try:
            self._calls.close()
        except Exception as error:  # noqa: BLE001 - a plug-in's bug must not end the worker
            self._report.problem(str(error))

    def _keep(self, session: _Session, task: Task) -> None:
        """Append a task to its session, or drop it when the session holds too much already."""
        missing = session.last_seq and task.seq > session.last_seq + 1
        if task.method != "open_session":
            session.last_seq = max(session.last_seq, task.seq)
        ends = task.method == "close_session"
        if ends:
            session.ended_at_s = time.monotonic()
        over = session.blocked_since_s and session.size_bytes > self._backlog_bytes
        if over and not ends:
            self._report.dropped(task, "disk", "more than can be kept while the output fails")
            return
        gap = self._report.take_gap(session.id)
        if gap is None and missing:
            now_ns = time.time_ns()
            gap = Gap("sink", now_ns, now_ns, None, "the daemon ended before it could write")
        if gap is not None:
            session.tasks.append(Task("write_gap", session.id, task.seq, (gap,), size_bytes=0))
        session.tasks.append(task)
        session.size_bytes += task.size_bytes

    def _hand_over(self, session: _Session) -> None:
        """Give the sink what it has not taken yet; block the session when that fails."""
        try:
            self._ensure_open(session)
        except Exception as error:  # noqa: BLE001 - a plug-in's bug must not end the worker
            self._report.opened(session.id, error)
            self._block(session, str(error))
            return
        for task in list(itertools.islice(session.tasks, session.handed, None)):
            if session.handed and session.tasks[session.handed - 1].method == "close_session":
                break  # what follows belongs to the process's return, after the commit
            try:
                self._call(session, task)
            except (SinkError, OSError) as error:
                self._block(session, str(error))
                return
            except Exception as error:  # noqa: BLE001 - a plug-in's bug costs this task only
                self._reject(task, error)
            session.handed += 1
            self._uncommitted_bytes += task.size_bytes
        if session.handed and not self._uncommitted_since_s:
            self._uncommitted_since_s = time.monotonic()

    def _ensure_open(self, session: _Session) -> None:
        if session.generation == self._calls.generation:
            return
        session.handed = 0
        output = self._calls.open_session(session.info)
        session.generation = self._calls.generation
        session.output = output
        session.written_seq = output.written_seq
        session.last_seq = max(session.last_seq, output.written_seq)

    def _call(self, session: _Session, task: Task) -> None:
        if task.method == "open_session":
            assert session.output is not None
            self._report.opened(session.id, session.output)
        elif task.method == "close_session" or (
            task.method != "skip" and task.seq > session.written_seq
        ):
            getattr(self._calls, task.method)(session.id, task.seq, *task.arguments)

    def _reject(self, task: Task, error: Exception) -> None:
        """Drop a task that the sink can't digest at all; its bytes go with the commit."""
        _log.error("%s of session %s failed: %r", task.method, task.session_id, error)
        self._report.problem(f"{task.method}: {error}")
        stage = "decode" if isinstance(error, ValueError) else "disk"
        lost = Task(task.method, task.session_id, task.seq, size_bytes=0, records=task.records)
        task.records = None
        self._report.dropped(lost, stage, str(error))

    def _block(self, session: _Session, reason: str) -> None:
        """Keep the tasks of a session for later; the sink will be asked to open it anew."""
        now_s = time.monotonic()
        if not session.blocked_since_s:
            _log.warning("output of session %s fails: %s", session.id, reason)
            session.blocked_since_s = now_s
            session.retry_delay_s = FIRST_RETRY_S
        session.handed = 0
        session.generation = -1
        session.retry_at_s = now_s + session.retry_delay_s
        session.retry_delay_s = min(2 * session.retry_delay_s, LAST_RETRY_S)
        self._report.problem(reason)
        if now_s - session.blocked_since_s > RELEASE_AFTER_S:
            self._report.handled(session.id, session.last_seq)

    def _release(self, session: _Session) -> None:
        """Report the tasks that the sink has taken as committed."""
        tasks = [session.tasks.popleft() for _ in range(session.handed)]
        session.handed = 0
        session.size_bytes -= sum(task.size_bytes for task in tasks)
        if session.blocked_since_s:
            _log.warning("output of session %s works again", session.id)
            session.blocked_since_s = 0.0
            self._report.problem("")
        seq = tasks[-1].seq if session.tasks else session.last_seq
        self._report.committed(session.id, seq, tasks)
        if tasks[-1].method == "close_session":
            del self._sessions[session.id]
            self._forget_at_s[session.id] = time.monotonic() + FORGET_AFTER_S
            for task in session.tasks:
                self.take(task)
        elif session.tasks:
            self._hand_over(session)

    def _forget(self, session_ids: list[str]) -> None:
        for session_id in session_ids:
            del self._forget_at_s[session_id]
            try:
                self._calls.forget_session(session_id)
            except Exception as error:  # noqa: BLE001 - a plug-in's bug must not end the worker
                _log.warning("session %s can't be forgotten: %s", session_id, error)

    def _give_up(self, session: _Session, reason: str) -> None:
        for task in session.tasks:
            self._report.dropped(task, "disk", reason)
        self._report.committed(session.id, session.last_seq, [])
        del self._sessions[session.id]
