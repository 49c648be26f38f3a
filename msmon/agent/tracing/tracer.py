"""The state machine of this process's traces.

A plan is accepted on the agent's thread; everything that touches a profiler runs on the
thread that steps, at the boundary between two steps. What others may know is in ``state``.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msmon.agent.log import AgentLog
from msmon.agent.steps.counter import StepCounter
from msmon.agent.tracing.backend import Backend
from msmon.agent.tracing.plan import (
    CANCELLED,
    DONE,
    FAILED,
    PARSING,
    READY,
    RUNNING,
    TracePlan,
    TraceState,
)
from msmon.bus.messages import MAX_PROBLEM_CHARACTERS
from msmon.errors import CommandRefused

PAUSE_LEAD_STEPS = 3
PAUSE_LEAD_S = 3.0
"""Monitoring is paused so many steps, or seconds, before the trace begins; the longer counts."""

WRITING_LIMIT_S = 60.0
"""How long the exit of the job may be held up by a trace that is still being written."""


@dataclass
class _Run:
    """A trace on its way. ``first`` is set when it is known; -1 before."""

    plan: TracePlan
    backend: Backend
    first: int
    pause_monitor: bool
    begun: bool = False
    pause_asked: bool = False
    captured: int = 0
    last: int = -1
    recording_since_s: float = 0.0
    cancelled: bool = False


class StepPassed(CommandRefused):
    """The first step of a trace has begun already. ``step`` is the current one."""

    def __init__(self, message: str, next_step: str, step: int) -> None:
        super().__init__(message, next_step)
        self.step = step


class Tracer:
    """The traces of this process, one at a time.

    ``on_change``: the state has changed. ``on_pause`` and ``on_release``: monitoring has to
    make way, and may come back; both are called from the stepping thread and must only queue.
    """

    def __init__(
        self,
        steps: StepCounter,
        log: AgentLog,
        on_change: Callable[[], None],
        on_pause: Callable[[], None],
        on_release: Callable[[], None],
    ) -> None:
        self.state = TraceState()
        self.monitor_paused = False
        """Set by whoever pauses monitoring; a trace that asked for it waits for this."""
        self._steps = steps
        self._log = log
        self._on_change = on_change
        self._on_pause = on_pause
        self._on_release = on_release
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._writing: threading.Thread | None = None

    # --- called on the agent's thread -----------------------------------------------------

    @property
    def holder(self) -> str:
        """What holds this process's profiler for a trace; empty when nothing does."""
        run = self._run
        if run is None:
            return ""
        return f"nputrace ({run.plan.describe()}, {self.state.state})"

    def arm(self, plan: TracePlan, backend: Backend, pause_monitor: bool) -> None:
        """Accept a plan: the trace begins by itself when its step comes.

        Raises CommandRefused while another trace runs or is being written, StepPassed when
        its first step, or the warm-up before it, has begun.
        """
        if self._run is not None or self.state.state == PARSING:
            holder = self.holder or "the last trace, which is still being written,"
            raise CommandRefused(
                f"{holder} holds this process", "wait for it, or end it with nputrace --cancel"
            )
        first = -1 if plan.first_step is None or plan.is_early else plan.first_step
        run = _Run(plan, backend, first, pause_monitor)
        state = TraceState(
            READY,
            plan.trace_id,
            backend.name,
            requested_steps=plan.iterations,
            path=plan.directory,
            left_out=backend.left_out,
        )
        if first >= 0:
            state = state.changed(start_step=first, stop_step=self._stop_step(run))
        with self._lock:
            before, self.state = self.state, state
            self._run = run
            self._steps.at_boundary = self.at_boundary
            try:
                self._require_ahead(run)
            except StepPassed:
                self._forget()
                self.state = before
                raise
        self._ask_for_pause(run)
        self._on_change()

    def cancel(self) -> str:
        """End the trace; returns what happens to it. Raises CommandRefused when there is none."""
        with self._lock:
            run = self._run
            if run is None:
                raise CommandRefused(
                    "no trace waits or runs in this process", "see msmon status for the last one"
                )
            if run.begun:
                run.cancelled = True
                return "the trace ends with the current step and keeps what it has"
            self._forget()
        self._conclude(run, CANCELLED, "cancelled before it began")
        self._on_release()
        return "the waiting trace was cancelled"

    # --- called on the thread that steps ----------------------------------------------------

    def at_boundary(self) -> None:
        """Do what the trace needs between two steps; never raises."""
        run = self._run
        if run is None:
            return
        try:
            self._advance(run, self._steps.count)
        except Exception as error:  # noqa: BLE001  boundary: a profiler must not end the training
            self._log.write("".join(traceback.format_exception(type(error), error, None)))
            self._fail(run, f"{run.backend.name}: {type(error).__name__}: {error}")

    def end_early(self) -> None:
        """The process ends: close a running trace and write what it has, forget a waiting one."""
        run = self._run
        if run is not None and run.begun:
            try:
                self._end(run, background=False)
            except Exception as error:  # noqa: BLE001  boundary: the job must end as it would
                self._fail(run, f"{run.backend.name}: {type(error).__name__}: {error}")
        elif run is not None:
            self._forget()
            now = f"the process ended after step {self._steps.count - 1}"
            self._conclude(run, FAILED, f"{now}, before the trace began")
        writing = self._writing
        if writing is not None:
            writing.join(WRITING_LIMIT_S)

    # --- one boundary -------------------------------------------------------------------------

    def _advance(self, run: _Run, step: int) -> None:
        """Step ``step`` begins now."""
        if run.begun:
            self._advance_running(run, step)
        elif not run.plan.is_early:
            if run.first < 0:
                if run.pause_monitor and not self.monitor_paused:
                    self._ask_for_pause(run)
                    return
                run.first = max(step + run.plan.warmup, run.plan.first_step or 0)
                self._publish(start_step=run.first, stop_step=self._stop_step(run))
            self._ask_for_pause(run)
            if step > run.first:
                self._fail(run, f"step {run.first} was skipped: the counter went on to {step}")
            elif step >= run.first - run.plan.warmup:
                self._begin(run, step)

    def _begin(self, run: _Run, step: int) -> None:
        if run.pause_monitor and not self.monitor_paused:
            self._fail(run, "monitoring could not be paused in time")
            return
        with self._lock:
            if self._run is not run:  # cancelled at this very moment
                return
            run.begun = True
        run.backend.begin(step, run.first)
        if step == run.first:
            run.recording_since_s = time.monotonic()
        self._publish(state=RUNNING)

    def _advance_running(self, run: _Run, step: int) -> None:
        if run.recording_since_s:
            run.last = step - 1
            run.captured += 1
            if self._is_complete(run):
                self._end(run, background=bool(run.plan.options["async_mode"]))
                return
        elif run.cancelled:
            self._end(run, background=False)
            return
        run.backend.step(step)
        if step >= run.first and not run.recording_since_s:
            run.recording_since_s = time.monotonic()

    def _is_complete(self, run: _Run) -> bool:
        if run.plan.iterations:
            return run.cancelled or run.captured >= run.plan.iterations
        age_ms = (time.monotonic() - run.recording_since_s) * 1000
        return run.cancelled or age_ms >= run.plan.options["duration_ms"]

    # --- the end of a trace ---------------------------------------------------------------------

    def _end(self, run: _Run, background: bool) -> None:
        """Stop the profiler and have the files written, here or beside the training."""
        if not run.captured:
            self._forget()
            run.backend.discard()
            reason = "cancelled" if run.cancelled else "the process ended"
            self._conclude(run, CANCELLED if run.cancelled else FAILED, f"{reason} before a step")
            self._on_release()
            return
        run.backend.end()
        self._publish(state=PARSING, captured=(run.last - run.captured + 1, run.last))
        self._forget()
        self._on_release()
        if background:
            self._writing = threading.Thread(
                target=self._write, args=(run,), name="msmon-trace", daemon=True
            )
            self._writing.start()
            return
        self._log.write("writing the trace: the training waits for it (not with --async-mode)")
        self._write(run)

    def _write(self, run: _Run) -> None:
        began_s = time.monotonic()
        try:
            files = run.backend.write(run.last - run.captured + 1, run.last)
        except Exception as error:  # noqa: BLE001  boundary: a full disk must not end the training
            reason = f"the trace could not be written: {type(error).__name__}: {error}"
            self._conclude(run, FAILED, reason)
            return
        self._log.write(f"trace written in {time.monotonic() - began_s:.1f} s: {', '.join(files)}")
        self._publish(files=files)
        missing = max(0, run.plan.iterations - run.captured)
        if not missing:
            self._conclude(run, DONE, "")
            return
        why = "it was cancelled" if run.cancelled else "the process ended"
        text = f"{run.captured} of {run.plan.iterations} steps: {why} after step {run.last}"
        self._publish(partial=True)
        self._conclude(run, DONE, text)

    def _fail(self, run: _Run, reason: str) -> None:
        self._forget()
        if run.begun:
            try:
                run.backend.discard()
            except Exception as error:  # noqa: BLE001  boundary: it has failed already
                self._log.write(f"after a failed trace: {error}")
        self._conclude(run, FAILED, reason)
        self._on_release()

    # --- state ------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """From now on ``step()`` is a counter again."""
        self._steps.at_boundary = None
        self._run = None

    def _conclude(self, run: _Run, state: str, reason: str) -> None:
        self._log.write(f"trace of {run.plan.describe()}: {state}{': ' if reason else ''}{reason}")
        self._publish(state=state, reason=reason[:MAX_PROBLEM_CHARACTERS])

    def _publish(self, **changes: Any) -> None:
        self.state = self.state.changed(**changes)
        self._on_change()

    def _stop_step(self, run: _Run) -> int:
        return run.first + run.plan.iterations if run.plan.iterations else -1

    def _ask_for_pause(self, run: _Run) -> None:
        """Have monitoring make way shortly before the trace begins."""
        if not run.pause_monitor or run.pause_asked or run.plan.is_early:
            return
        ahead = run.first - run.plan.warmup - self._steps.count if run.first >= 0 else 0
        lead_s = ahead * self._steps.step_s
        if ahead <= PAUSE_LEAD_STEPS or 0 < lead_s <= PAUSE_LEAD_S:
            run.pause_asked = True
            self._on_pause()

    def _require_ahead(self, run: _Run) -> None:
        current, first = self._steps.count, run.plan.first_step
        if first is None or first - run.plan.warmup > current:
            return
        earliest = current + 1 + run.plan.warmup
        next_step = f"step {earliest} is the first that can be traced; -1 takes the next"
        if first < current:
            text = f"step {first} has passed: the current step is {current}"
        elif first == current:
            text = f"step {first} has begun already: it is the current step"
        else:
            text = f"{run.plan.warmup} warm-up steps before step {first} do not fit: "
            text += f"the current step is {current}"
        raise StepPassed(text, next_step, current)
