"""Drives this process's traces through a profiler.

Four threads meet here:

* the collector accepts a plan and cancels;
* the thread that steps calls the profiler, between two steps;
* a thread of the trace may write the files beside the training;
* the thread on which the process ends closes what still runs.

Two locks keep them apart. The one of :class:`CurrentTrace` guards the trace's state; each change
asks under it whether the trace is still the current one. ``Tracer._driving`` is held while a
profiler is called. That may take long, so whoever steps meanwhile goes on without waiting.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

from msmon.agent.agent_log import AgentLog
from msmon.agent.steps.counter import StepCounter
from msmon.agent.tracing.backend import Backend
from msmon.agent.tracing.current import CurrentTrace, range_of
from msmon.agent.tracing.job_profilers import JobProfilers, shared
from msmon.agent.tracing.pause import MonitorPause
from msmon.agent.tracing.plan import TracePlan
from msmon.agent.tracing.trace_run import TraceRun
from msmon.bus.rows import TraceRow
from msmon.bus.words import TraceState
from msmon.errors import CommandRefused
from msmon.threads import Lock, NativeThread, sleep, thread_id

PAUSE_LEAD_STEPS = 3
PAUSE_LEAD_S = 3.0
"""Monitoring is paused so many steps, or seconds, before the trace begins; the longer counts.
At 10 ms a step that is 300 steps ahead, at a minute a step it is three."""

MAKE_WAY_LIMIT_S = 5.0
"""How long the start of a profiler of the job waits, on another thread than the one that steps, for
the end of the step that is traced."""

WRITING_LIMIT_S = 60.0
"""How long the exit of the job may be held up by a trace that is still being written."""


class Tracer:
    """The traces of this process, one at a time; ``current`` has their state.

    ``_driver`` is written by the thread that holds ``_driving``, ``_writing`` by the one that
    stops the profiler.
    """

    def __init__(
        self,
        steps: StepCounter,
        log: AgentLog,
        on_change: Callable[[], None],
        pause: MonitorPause,
        job_profilers: JobProfilers = shared,
    ) -> None:
        self._current = CurrentTrace(steps, log, on_change, pause)
        self._steps = steps
        self._log = log
        self._on_change = on_change
        self._pause = pause
        self._driving = Lock()
        self._driver = 0
        """The thread that holds ``_driving``."""
        self._writing: NativeThread | None = None
        self._job_profilers = job_profilers
        job_profilers.is_ours = lambda: self._driver == thread_id()
        job_profilers.make_way = self.make_way

    # --- for any thread ---------------------------------------------------------------------

    @property
    def progress(self) -> TraceRow:
        """What is told of the last trace."""
        return self._current.progress

    @property
    def holder(self) -> str:
        """What holds this process's profiler for a trace; empty when nothing does."""
        return self._current.holder

    # --- called on the collector's thread -----------------------------------------------------

    def arm(self, plan: TracePlan, backend: Backend, pause_monitor: bool) -> None:
        """Accept a plan: the trace begins by itself when its step comes.

        Raises CommandRefused while another trace runs or is being written, StepPassed when
        its first step, or the warm-up before it, has begun.
        """
        run = TraceRun(plan, backend, pause_monitor)
        self._current.accept(run, self.at_boundary)
        self._ask_for_pause(run)
        self._on_change()

    def cancel(self) -> str:
        """End the trace; returns what happens to it. Raises CommandRefused when there is none."""
        run, current = self._current.run, self._current
        if run is not None:
            reason = "cancelled before it began"
            if current.move(run, TraceState.CANCELLED, reason, only_from=TraceState.READY):
                return "the waiting trace was cancelled"
            if current.is_in(run, TraceState.RUNNING):
                run.cancelled = True
                return "the trace ends with the current step and keeps what it has"
        raise CommandRefused(
            "no trace waits or runs in this process", "see msmon status for the last one"
        )

    # --- called on the thread that steps ----------------------------------------------------

    def at_boundary(self) -> None:
        """Do what the trace needs between two steps; never raises.

        Returns at once where another thread drives the profiler at this moment.
        """
        run = self._current.run
        if run is None or not self._take_wheel(blocking=False):
            return
        try:
            self._guarded(run, self._advance, self._steps.count)
        finally:
            self._leave_wheel()

    # --- called on a thread that starts a profiler of the job --------------------------------

    def make_way(self, profiler: str) -> None:
        """End a running trace, because the job is about to start this profiler.

        The trace keeps the steps that it has, and is written before the call returns.
        """
        run = self._current.run
        if run is None or not self._current.is_in(run, TraceState.RUNNING):
            return
        run.cut_short = f"the job has started {profiler}"
        if run.driven_by == thread_id():
            if self._take_wheel(blocking=False):
                try:
                    self._guarded(run, self._end, False)
                finally:
                    self._leave_wheel()
            return
        deadline_s = time.monotonic() + MAKE_WAY_LIMIT_S
        while self._current.is_in(run, TraceState.RUNNING) and time.monotonic() < deadline_s:
            sleep(0.01)  # the thread that steps ends it: a profiler belongs to one thread

    # --- called on the thread that ends the process -----------------------------------------

    def end_early(self) -> None:
        """The process ends: close a running trace and write what it has, fail a waiting one.

        Waits for a thread that drives the profiler or writes, ``WRITING_LIMIT_S`` at most.
        """
        run = self._current.run
        if run is None or self._driver == thread_id():  # from inside a profiler's call
            return
        if not self._take_wheel(timeout_s=WRITING_LIMIT_S):
            self._log.write(f"the process ends while {run.backend.name} is busy")
            return
        try:
            self._guarded(run, self._end_with_process)
        finally:
            self._leave_wheel()
        writing = self._writing
        if writing is not None:
            writing.join(WRITING_LIMIT_S)

    # --- while driving: one thread at a time --------------------------------------------------

    def _take_wheel(self, blocking: bool = True, timeout_s: float = -1) -> bool:
        taken = self._driving.acquire(blocking, timeout_s)
        if taken:
            self._driver = thread_id()
        return taken

    def _leave_wheel(self) -> None:
        self._driver = 0
        self._driving.release()

    def _guarded(self, run: TraceRun, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(run, *arguments)
        except Exception as error:  # noqa: BLE001  boundary: a profiler must not end the training
            self._log.write("".join(traceback.format_exception(type(error), error, None)))
            self._fail(run, f"{run.backend.name}: {type(error).__name__}: {error}")

    def _advance(self, run: TraceRun, step: int) -> None:
        """Step ``step`` begins now."""
        if self._current.is_in(run, TraceState.RUNNING):
            if run.advance(step):
                self._end(run, background=bool(run.plan.options["async_mode"]))
        elif self._current.is_in(run, TraceState.READY) and not run.plan.is_early:
            self._advance_waiting(run, step)

    def _advance_waiting(self, run: TraceRun, step: int) -> None:
        profiler = self._job_profilers.at_work()
        if run.first < 0:
            if profiler:
                self._wait_for(run, profiler)
                return
            if run.pause_monitor and not self._pause.granted:
                self._ask_for_pause(run)
                return
            run.choose_first(step)
            self._current.move(run, TraceState.READY, **range_of(run))
        self._ask_for_pause(run)
        if step > run.first:
            self._fail(run, f"step {run.first} was skipped: the counter went on to {step}")
        elif step >= run.begins_at:
            if profiler:
                self._fail(run, f"{profiler} of the job was at work at step {step}")
            else:
                self._begin(run, step)

    def _wait_for(self, run: TraceRun, profiler: str) -> None:
        reason = f"waits until {profiler} of the job has ended"
        if self._current.progress.reason != reason:
            self._current.move(run, TraceState.READY, reason)

    def _begin(self, run: TraceRun, step: int) -> None:
        if run.pause_monitor and not self._pause.granted:
            self._fail(run, "monitoring could not be paused in time")
        elif self._current.move(run, TraceState.RUNNING):  # else it was cancelled just now
            run.begin(step)

    def _end_with_process(self, run: TraceRun) -> None:
        if self._current.is_in(run, TraceState.RUNNING):
            self._end(run, background=False)
        elif self._current.is_in(run, TraceState.READY):
            now = f"the process ended after step {self._steps.count - 1}"
            self._current.move(run, TraceState.FAILED, f"{now}, before the trace began")

    def _end(self, run: TraceRun, background: bool) -> None:
        """Stop the profiler and have the files written, here or beside the training."""
        if not run.captured:
            run.backend.discard()
            if run.cancelled:
                self._current.move(run, TraceState.CANCELLED, "cancelled before a step")
            else:
                why = run.cut_short or "the process ended"
                self._current.move(run, TraceState.FAILED, f"{why} before a step")
            return
        run.backend.end()
        self._current.move(run, TraceState.PARSING, captured=list(run.captured_steps))
        if background and self._write_beside(run):
            return
        self._log.write("writing the trace: the training waits for it (not with --async-mode)")
        self._write(run)

    def _write_beside(self, run: TraceRun) -> bool:
        """Write on a thread of its own; False when the process can't start one any more."""
        writing = NativeThread(self._write, "msmon-trace", run)
        try:
            writing.start()
        except RuntimeError:
            return False
        self._writing = writing
        return True

    def _write(self, run: TraceRun) -> None:
        began_s = time.monotonic()
        try:
            files = run.write()
        except Exception as error:  # noqa: BLE001  boundary: a full disk must not end the training
            reason = f"the trace could not be written: {type(error).__name__}: {error}"
            self._current.move(run, TraceState.FAILED, reason)
            return
        self._log.write(f"trace written in {time.monotonic() - began_s:.1f} s: {', '.join(files)}")
        missing = run.shortfall()
        self._current.move(run, TraceState.DONE, missing, files=list(files), partial=bool(missing))

    def _fail(self, run: TraceRun, reason: str) -> None:
        if self._current.is_in(run, TraceState.RUNNING):
            try:  # before monitoring may have MSPTI back
                run.backend.discard()
            except Exception as error:  # noqa: BLE001  boundary: it has failed already
                self._log.write(f"after a failed trace: {error}")
        self._current.move(run, TraceState.FAILED, reason)

    def _ask_for_pause(self, run: TraceRun) -> None:
        """Have monitoring make way shortly before the trace begins."""
        if not run.pause_monitor or run.plan.is_early:
            return
        ahead = run.begins_at - self._steps.count if run.first >= 0 else 0
        lead_s = ahead * self._steps.step_s
        if ahead <= PAUSE_LEAD_STEPS or 0 < lead_s <= PAUSE_LEAD_S:
            self._current.want_pause(run)
