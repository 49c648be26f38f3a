"""The thread that makes every MSPTI call and decodes.

It waits for commands; while a session runs it also wakes a few times per second to read what
was recorded. An MSPTI call may block for minutes, so no other thread waits for this one without
a limit, and ``stuck_in`` tells in which call it is.
"""

from __future__ import annotations

import enum
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msmon.agent import installed
from msmon.agent.agent_log import AgentLog
from msmon.agent.link.pending import PendingCommand
from msmon.agent.link.uplink import Uplink
from msmon.agent.monitoring import Monitoring
from msmon.agent.steps.counter import StepCounter
from msmon.agent.tracing.control import TraceControl
from msmon.agent.tracing.pause import MonitorPause
from msmon.bus.messages import MAX_PROBLEM_CHARACTERS, Answer
from msmon.bus.words import AgentAction, ProcessState
from msmon.errors import CommandRefused, MsmonError, UsageError
from msmon.recording.holder import subscription_holder
from msmon.sessions import Counts, MonitorSettings
from msmon.threads import Empty, NativeThread, SimpleQueue

STUCK_AFTER_S = 3.0

_MAX_FAILURES = 10
"""A session ends after this many ticks in a row that failed for an unforeseen reason."""

_LEAVING_POLL_S = 0.02

_HALF_DONE = (ProcessState.STARTING, ProcessState.STOPPING)
"""A failure in these leaves a session that can't go on."""


class Note(enum.Enum):
    """What the collector is told beside commands. It then looks by itself at what is true now."""

    PAUSE_CHANGED = "pause changed"
    END = "end"
    EXIT = "exit"
    """As END, and the process ends too."""


@dataclass(frozen=True)
class CollectorState:
    """What the collector tells others: replaced as a whole, never changed."""

    state: ProcessState = ProcessState.IDLE
    session_id: str = ""
    settings: MonitorSettings | None = None
    unavailable_kinds: dict[str, str] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    library: str = ""
    problem: str = ""
    cpu_s: float = 0.0
    flushed_monotonic_s: float | None = None


class Collector:
    """The collector's thread, which writes all of its state; ``state`` may be read from any.

    ``on_change`` is called when a session begins, changes or ends; ``on_answer`` with the
    id of each command and the answer to it. Both are called on the collector's thread.
    """

    def __init__(
        self,
        uplink: Uplink,
        steps: StepCounter,
        log: AgentLog,
        on_change: Callable[[], None],
        on_answer: Callable[[str, Answer], None],
        traces: TraceControl,
        pause: MonitorPause,
    ) -> None:
        self.state = CollectorState()
        self._monitoring = Monitoring(uplink, steps, log, pause, self._publish)
        self._traces = traces
        self._log = log
        self._on_change = on_change
        self._on_answer = on_answer
        self._inbox: SimpleQueue[PendingCommand | Note] = SimpleQueue()
        self._thread = NativeThread(self._run, "msmon-collector")
        self._failures = 0
        self._ended = False

    # --- called from other threads ------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, command: PendingCommand) -> None:
        """Hand over a command; it is answered through ``on_answer``."""
        self._inbox.put(command)

    def look_at_pause(self) -> None:
        """Have the thread look at what the pause for a trace has become; returns at once."""
        self._inbox.put(Note.PAUSE_CHANGED)

    def shut_down(self, at_exit: bool = False) -> None:
        """Have the thread end its session and itself; returns at once.

        ``at_exit``: the process ends too; see :meth:`Recorder.ending_with_process`.
        """
        self._inbox.put(Note.EXIT if at_exit else Note.END)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; False when it is still there."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def leave_mspti(self, timeout_s: float) -> bool:
        """Wait until the thread has left MSPTI; after ``timeout_s``, forbid it to enter again.

        To be called after :meth:`shut_down`, where the process is about to end. MSPTI's static
        destructors take away what a call uses, so a process that ends within one crashes. Returns
        False when it is still inside.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self._monitoring.calls_are_over or self.join(_LEAVING_POLL_S):
                return True
        self._monitoring.forbid_calls()
        return False

    @property
    def busy(self) -> bool:
        """Whether a session runs, or begins or ends at this moment."""
        return self._monitoring.phase is not ProcessState.IDLE

    @property
    def stuck_in(self) -> str:
        """The MSPTI call that has not returned for seconds, and for how long; else empty."""
        call = self._monitoring.call_in_progress
        if call is None:
            return ""
        waited_s = time.monotonic() - call.since_monotonic_s
        return f"{call.text} for {waited_s:.0f} s" if waited_s >= STUCK_AFTER_S else ""

    # --- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        self._monitoring.look_for_library()
        self._publish()
        while not self._ended:
            try:
                self._turn()
                self._failures = 0
            except Exception as error:  # noqa: BLE001  boundary: the job must not notice
                self._fail(error)
        self._publish()

    def _turn(self) -> None:
        """Wait for the next command, note or tick and do it."""
        try:
            item = self._inbox.get(timeout=self._wait_s())
        except Empty:
            self._monitoring.tick()
        else:
            if item in (Note.END, Note.EXIT):
                self._ended = True
                self._monitoring.end("exit", at_exit=item is Note.EXIT)
            elif item is Note.PAUSE_CHANGED:
                self._monitoring.follow_pause()
            elif isinstance(item, PendingCommand) and item.begin():
                self._on_answer(item.message_id, self._carry_out(item))
        self._publish()

    def _wait_s(self) -> float | None:
        next_tick_s = self._monitoring.next_tick_s
        return None if next_tick_s is None else max(0.0, next_tick_s - time.monotonic())

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        text = f"internal error: {type(error).__name__}: {error}"
        self._monitoring.problem = text[:MAX_PROBLEM_CHARACTERS]
        self._log.write(
            "".join(traceback.format_exception(type(error), error, error.__traceback__))
        )
        if self._failures >= _MAX_FAILURES or self._monitoring.phase in _HALF_DONE:
            try:
                self._monitoring.give_up()
            except Exception as second:  # noqa: BLE001  boundary: this thread must go on
                self._log.write(f"the session could not be ended: {second!r}")
        self._publish()

    # --- commands ---------------------------------------------------------------------------

    def _carry_out(self, command: PendingCommand) -> Answer:
        actions: dict[str, Callable[[dict[str, Any]], Answer]] = {
            AgentAction.START_MONITORING: self._start_monitoring,
            AgentAction.UPDATE_MONITORING: self._monitoring.update,
            AgentAction.STOP_MONITORING: self._monitoring.stop,
            AgentAction.START_TRACE: self._start_trace,
            AgentAction.CANCEL_TRACE: self._traces.cancel,
        }
        action = actions.get(command.action)
        try:
            if action is None:
                raise UsageError(
                    f"unknown command '{command.action}'",
                    "the daemon may be newer than the job",
                )
            return action(command.fields)
        except MsmonError as error:
            self._log.write(f"{command.action} refused: {error}")
            return Answer(False, error.message, error.next_step, self.state.session_id)
        except Exception as error:  # noqa: BLE001  boundary: whoever asked must get an answer
            self._fail(error)
            changed = installed.change()
            if changed:
                return Answer(False, f"{changed}: {error}", installed.RESTART)
            return Answer(False, self._monitoring.problem, "the agent's log has the details")

    def _start_monitoring(self, fields: dict[str, Any]) -> Answer:
        holder = self._traces.holder
        if holder and self._monitoring.session is None:
            raise CommandRefused(
                f"{holder} holds this process", "wait for it, or end it with nputrace --cancel"
            )
        return self._monitoring.start(fields)

    def _start_trace(self, fields: dict[str, Any]) -> Answer:
        session = self._monitoring.session
        monitoring = f"npu-monitor (session {session.session_id})" if session else ""
        return self._traces.start(fields, monitoring, subscription_holder())

    # --- state --------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Replace the state by what is true now, and say so when it matters at once."""
        monitoring = self._monitoring
        session = monitoring.session
        before = self.state
        self.state = now = CollectorState(
            state=monitoring.phase,
            session_id=session.session_id if session else "",
            settings=session.settings.with_kinds() if session else None,
            unavailable_kinds=session.unavailable_kinds if session else {},
            counts=session.counts() if session else monitoring.last_counts,
            library=monitoring.library,
            problem=(session.problem if session else "") or monitoring.problem,
            cpu_s=time.thread_time(),
            flushed_monotonic_s=session.flushed_monotonic_s if session else None,
        )
        told = (before.state, before.settings, before.problem)
        if told != (now.state, now.settings, now.problem):
            self._on_change()
