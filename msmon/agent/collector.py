"""The thread that makes every MSPTI call and decodes.

It waits for commands; while a session runs it also wakes a few times per second.
An MSPTI call may block for long: nobody waits for this thread, and ``stuck_in``
tells others in which call it is.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msmon.agent.link.pending import PendingCommand
from msmon.agent.link.uplink import Uplink
from msmon.agent.log import AgentLog
from msmon.agent.session import MonitoringSession
from msmon.agent.session_answers import session_answer, totals
from msmon.agent.tracing.control import TraceControl
from msmon.bus.messages import MAX_PROBLEM_CHARACTERS, Answer
from msmon.errors import CommandRefused, MsmonError, UsageError
from msmon.recording import library
from msmon.recording.recorder import MsptiCall, Recorder, subscription_holder
from msmon.records.kinds import format_kinds
from msmon.sessions import Counts, MonitorSettings

STUCK_AFTER_S = 3.0

PAUSE, RESUME = "monitor.pause", "monitor.resume"
"""What the tracer asks for around a trace; nobody waits for the answers."""

_MAX_FAILURES = 10
"""A session ends after this many ticks in a row that failed for an unforeseen reason."""


@dataclass(frozen=True)
class CollectorState:
    """What the collector tells others: replaced as a whole, never changed."""

    state: str = "idle"
    session_id: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    unavailable_kinds: dict[str, str] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    library: str = ""
    problem: str = ""
    cpu_s: float = 0.0
    flushed_monotonic_s: float | None = None


class Collector:
    """The collector's thread. ``state`` may be read from any thread.

    ``on_change`` is called when a session begins, changes or ends; ``on_answer`` with the
    id of each command and the answer to it. Both are called on the collector's thread.
    """

    def __init__(
        self,
        uplink: Uplink,
        step: Callable[[], int],
        log: AgentLog,
        on_change: Callable[[], None],
        on_answer: Callable[[str, Answer], None],
        traces: TraceControl,
    ) -> None:
        self.state = CollectorState()
        self._uplink = uplink
        self._step = step
        self._log = log
        self._on_change = on_change
        self._on_answer = on_answer
        self._traces = traces
        self._commands: queue.SimpleQueue[PendingCommand | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="msmon-collector", daemon=True)
        self._phase = "idle"
        self._loading: MsptiCall | None = None
        self._recorder: Recorder | None = None
        self._session: MonitoringSession | None = None
        self._last_counts = Counts()
        self._library = ""
        self._problem = ""
        self._failures = 0
        self._ended = False

    # --- called from other threads ------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, command: PendingCommand) -> None:
        """Hand over a command; it is answered through ``on_answer``."""
        self._commands.put(command)

    def shut_down(self) -> None:
        """Have the thread end its session and itself; returns at once."""
        self._commands.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; False when it is still there."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def busy(self) -> bool:
        """Whether a session runs or a command is being carried out."""
        return self._phase != "idle"

    @property
    def stuck_in(self) -> str:
        """The MSPTI call that has not returned for seconds, and for how long; else empty."""
        recorder = self._recorder
        call = self._loading or (recorder.call_in_progress if recorder else None)
        if call is None:
            return ""
        waited_s = time.monotonic() - call.since_monotonic_s
        return f"{call.text} for {waited_s:.0f} s" if waited_s >= STUCK_AFTER_S else ""

    # --- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        np.seterr(all="ignore")  # for this thread only: odd records must not print warnings
        self._look_for_library()
        self._publish()
        while not self._ended:
            try:
                self._turn()
                self._failures = 0
            except Exception as error:  # noqa: BLE001  boundary: the job must not notice
                self._fail(error)
        self._publish()

    def _turn(self) -> None:
        """Wait for the next command or tick and do it."""
        try:
            command = self._commands.get(timeout=self._wait_s())
        except queue.Empty:
            self._tick()
            return
        if command is None:
            self._ended = True
            self._end_session("exit")
        elif command.begin():
            self._on_answer(command.message_id, self._carry_out(command))
        self._publish()

    def _wait_s(self) -> float | None:
        if self._session is None:
            return None
        return max(0.0, self._session.next_tick_s - time.monotonic())

    def _tick(self) -> None:
        session = self._session
        if session is None:
            return
        if session.due:
            self._end_session("duration")
        else:
            session.tick()
        self._publish()

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        text = f"internal error: {type(error).__name__}: {error}"
        self._problem = text[:MAX_PROBLEM_CHARACTERS]
        self._log.write(
            "".join(traceback.format_exception(type(error), error, error.__traceback__))
        )
        if self._failures >= _MAX_FAILURES or self._phase in ("starting", "stopping"):
            self._give_up_session()
        self._publish()

    def _give_up_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.abandon()
        elif self._recorder is not None:
            self._recorder.abandon()
        self._phase = "idle"

    def _look_for_library(self) -> None:
        try:
            self._library = library.describe()
        except (MsmonError, OSError) as error:
            self._problem = str(error)
            self._log.write(self._problem)

    # --- commands ---------------------------------------------------------------------------

    def _carry_out(self, command: PendingCommand) -> Answer:
        actions = {
            "monitor.start": self._start_session,
            "monitor.update": self._update_session,
            "monitor.stop": self._stop_session,
            "trace.start": self._start_trace,
            "trace.cancel": self._traces.cancel,
            PAUSE: self._pause_session,
            RESUME: self._resume_session,
        }
        action = actions.get(command.action)
        try:
            if action is None:
                raise UsageError(
                    f"unknown command {command.action!r}", "the daemon may be newer than the job"
                )
            return action(command.fields)
        except MsmonError as error:
            self._log.write(f"{command.action} refused: {error}")
            return Answer(False, error.message, error.next_step, self.state.session_id)
        except Exception as error:  # noqa: BLE001  boundary: whoever asked must get an answer
            self._fail(error)
            return Answer(False, self._problem, "the agent's log has the details")

    def _start_session(self, fields: dict[str, Any]) -> Answer:
        if self._session is not None:
            raise CommandRefused(
                f"monitoring runs already (session {self._session.session_id})",
                "change it with update, or end it with stop",
            )
        if self._traces.holder:
            raise CommandRefused(
                f"{self._traces.holder} holds this process",
                "wait for it, or end it with nputrace --cancel",
            )
        settings = MonitorSettings.from_fields(fields)
        self._enter("starting")
        try:
            session = MonitoringSession(settings, self._open_recorder(), self._uplink, self._step)
            session.start()
        except MsmonError as error:
            self._problem = str(error)
            self._phase = "idle"
            raise
        self._problem = ""
        self._session = session
        self._phase = "monitoring"
        kinds = format_kinds(session.recorded_kinds)
        self._log.write(f"session {session.session_id} started: {kinds}")
        return session_answer(session, f"monitoring started: {kinds}")

    def _update_session(self, fields: dict[str, Any]) -> Answer:
        session = self._running_session()
        session.update(fields)
        changed = ", ".join(f"{name}={fields[name]!r}" for name in sorted(fields))
        return session_answer(session, f"monitoring updated: {changed or 'nothing was mentioned'}")

    def _stop_session(self, fields: dict[str, Any]) -> Answer:
        if fields:
            raise UsageError(f"stop takes no options, got {', '.join(sorted(fields))}")
        if self._session is None:
            return Answer(True, "monitoring does not run in this process; nothing to stop")
        session = self._session
        self._end_session("stopped")
        return session_answer(session, f"monitoring stopped: {totals(session.counts())}")

    def _start_trace(self, fields: dict[str, Any]) -> Answer:
        session = self._session
        monitoring = f"npu-monitor (session {session.session_id})" if session else ""
        return self._traces.start(fields, monitoring, subscription_holder())

    def _pause_session(self, fields: dict[str, Any]) -> Answer:
        if self._session is not None:
            self._session.pause()
            self._phase = "paused"
        self._traces.tracer.monitor_paused = True
        return Answer(True, "monitoring is paused")

    def _resume_session(self, fields: dict[str, Any]) -> Answer:
        self._traces.tracer.monitor_paused = False
        session = self._session
        if session is not None and session.paused:
            try:
                session.resume()
            except MsmonError as error:
                session.problem = f"monitoring could not go on after the trace: {error.message}"
                self._end_session("failed")
                raise
            self._phase = "monitoring"
        return Answer(True, "monitoring goes on")

    def _running_session(self) -> MonitoringSession:
        if self._session is None:
            raise CommandRefused("monitoring does not run in this process", "start it first")
        return self._session

    def _open_recorder(self) -> Recorder:
        if self._recorder is None:
            self._loading = MsptiCall("loading libmspti.so", time.monotonic())
            try:
                self._recorder, self._library = library.open_recorder("npu-monitor")
            finally:
                self._loading = None
        return self._recorder

    def _end_session(self, reason: str) -> None:
        session = self._session
        if session is None:
            return
        self._enter("stopping")
        session.stop(reason)
        self._session = None
        self._phase = "idle"
        self._last_counts = session.counts()
        self._problem = session.problem
        self._log.write(f"session {session.session_id} ended: {reason}")

    # --- state --------------------------------------------------------------------------------

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._publish()

    def _publish(self) -> None:
        session = self._session
        before = self.state
        self.state = CollectorState(
            state=self._phase,
            session_id=session.session_id if session else "",
            settings=session.settings.as_fields() if session else {},
            unavailable_kinds=session.unavailable_kinds if session else {},
            counts=session.counts() if session else self._last_counts,
            library=self._library,
            problem=(session.problem if session else "") or self._problem,
            cpu_s=time.thread_time(),
            flushed_monotonic_s=session.flushed_monotonic_s if session else None,
        )
        now = self.state
        if (before.state, before.settings, before.problem) != (
            now.state,
            now.settings,
            now.problem,
        ):
            self._on_change()
