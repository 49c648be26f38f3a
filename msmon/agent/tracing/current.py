"""The one trace of this process, and the lock under which its state changes.

A trace waits (ready), records (running), has its files written (parsing) and has ended (done,
failed or cancelled).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from msmon.agent.agent_log import AgentLog
from msmon.agent.steps.counter import StepCounter
from msmon.agent.tracing.pause import MonitorPause
from msmon.agent.tracing.trace_run import TraceRun
from msmon.bus.messages import MAX_PROBLEM_CHARACTERS
from msmon.bus.rows import TraceRow
from msmon.bus.words import FINISHED, TraceState
from msmon.errors import CommandRefused
from msmon.threads import RLock


class CurrentTrace:
    """The trace that waits, records or is being written, and what status reports of it.

    ``run`` and ``progress`` are written by whichever thread moves the trace on, together and
    under ``_lock``, which is held for a few assignments only. Any thread may read them.
    ``on_change`` is called after each change, without the lock, and must only leave a note.
    """

    def __init__(
        self,
        steps: StepCounter,
        log: AgentLog,
        on_change: Callable[[], None],
        pause: MonitorPause,
    ) -> None:
        self.run: TraceRun | None = None
        """None once the trace has ended."""
        self.progress = TraceRow()
        """What status reports of the last trace. It is replaced as a whole, never changed."""
        self._steps = steps
        self._log = log
        self._on_change = on_change
        self._pause = pause
        self._lock = RLock()  # re-entrant: a signal handler may end the agent

    @property
    def holder(self) -> str:
        """What holds this process's profiler for a trace; empty when nothing does."""
        with self._lock:
            run, state = self.run, self.progress.state
        if run is None or state is TraceState.PARSING:
            return ""
        return f"nputrace ({run.plan.describe()}, {state})"

    def accept(self, run: TraceRun, at_boundary: Callable[[], None]) -> None:
        """Make ``run`` the current trace; ``at_boundary`` is called after each step from now on.

        Raises CommandRefused while another trace runs or is being written, StepPassed when
        its first step, or the warm-up before it, has begun.
        """
        with self._lock:
            if self.run is not None:
                holder = self.holder or "the last trace, which is still being written,"
                raise CommandRefused(
                    f"{holder} holds this process", "wait for it, or end it with nputrace --cancel"
                )
            # hooked in before the look at the counter: a step that begins after the look
            # finds the trace, once it has the lock
            self._steps.at_boundary = at_boundary
            try:
                run.require_ahead(self._steps.count)
            except CommandRefused:
                self._steps.at_boundary = None
                raise
            self.run = run
            self.progress = TraceRow(
                TraceState.READY,
                run.plan.trace_id,
                run.backend.name,
                requested_steps=run.plan.iterations,
                path=run.plan.directory,
                left_out=list(run.backend.left_out),
                **range_of(run),
            )

    def is_in(self, run: TraceRun, state: TraceState) -> bool:
        """Whether ``run`` is still the current trace and in this state."""
        with self._lock:
            return self.run is run and self.progress.state is state

    def move(
        self,
        run: TraceRun,
        state: TraceState,
        reason: str = "",
        only_from: TraceState | None = None,
        **changes: Any,
    ) -> bool:
        """Put a trace into a state, with ``changes`` of what is told of it.

        Returns False, with nothing done, when it is not the current trace any more, or not in
        the state ``only_from``. From PARSING on, ``step()`` is a counter again and monitoring
        may have MSPTI back.
        """
        with self._lock:
            if self.run is not run or only_from not in (None, self.progress.state):
                return False
            reason = reason[:MAX_PROBLEM_CHARACTERS]
            self.progress = dataclasses.replace(
                self.progress, state=state, reason=reason, **changes
            )
            if state is TraceState.PARSING or state in FINISHED:
                self._steps.at_boundary = None
                self._pause.withdraw()
            if state in FINISHED:
                self.run = None
        if state in FINISHED:
            outcome = f"{state}: {reason}" if reason else str(state)
            self._log.write(f"trace of {run.plan.describe()}: {outcome}")
        self._on_change()
        return True

    def want_pause(self, run: TraceRun) -> None:
        """Have monitoring make way for a trace, if that is still the current one."""
        with self._lock:
            if self.run is run:  # a cancelled trace would leave monitoring paused
                self._pause.want()


def range_of(run: TraceRun) -> dict[str, Any]:
    """Return what is known of the steps of a trace, as fields of ``TraceRow``."""
    return {"start_step": run.first, "stop_step": run.stop_step} if run.first >= 0 else {}
