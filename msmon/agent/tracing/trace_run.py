"""One trace on its way through a profiler: which step is warm-up, which is on record."""

from __future__ import annotations

import time

from msmon.agent.tracing.backend import Backend
from msmon.agent.tracing.plan import TracePlan
from msmon.errors import CommandRefused
from msmon.threads import thread_id


class StepPassed(CommandRefused):
    """The first step of a trace has begun already. ``step`` is the current one."""

    def __init__(self, message: str, next_step: str, step: int) -> None:
        super().__init__(message, next_step)
        self.step = step


class TraceRun:
    """A plan, the profiler that carries it out, and how far it has come.

    Written by the one thread that drives the profiler at a time (see :class:`Tracer`), except
    ``cancelled``, which the collector sets and never clears, and ``cut_short``, which a thread of
    the job does.
    """

    def __init__(self, plan: TracePlan, backend: Backend, pause_monitor: bool) -> None:
        self.plan = plan
        self.backend = backend
        self.pause_monitor = pause_monitor
        self.first = -1 if plan.first_step is None or plan.is_early else plan.first_step
        """The first step to record; -1 while it is open."""
        self.captured = 0
        """Steps on record."""
        self.cancelled = False
        self.cut_short = ""
        """Why the trace ends before its time; empty: it doesn't."""
        self.driven_by = 0
        """The thread that has started the profiler, and alone may stop it."""
        self._last = -1
        self._recording_since_s = 0.0

    # --- before it begins -----------------------------------------------------------------

    @property
    def begins_at(self) -> int:
        """The step at which the profiler starts: the first one, or the warm-up before it."""
        return self.first - self.plan.warmup

    @property
    def stop_step(self) -> int:
        """The step after the last one to record; -1 where that is not known."""
        return self.first + self.plan.iterations if self.plan.iterations else -1

    def choose_first(self, step: int) -> None:
        """Have an open plan begin with ``step``, which begins now, or as soon after as it may."""
        self.first = max(step + self.plan.warmup, self.plan.first_step or 0)

    def require_ahead(self, current: int) -> None:
        """Raise StepPassed when the profiler can't start in time any more."""
        plan, first = self.plan, self.plan.first_step
        if first is None or first - plan.warmup > current:
            return
        earliest = current + 1 + plan.warmup
        next_step = f"step {earliest} is the first that can be traced; -1 takes the next"
        if first < current:
            text = f"step {first} has passed: the current step is {current}"
        elif first == current:
            text = f"step {first} has begun already: it is the current step"
        else:
            text = f"{plan.warmup} warm-up steps before step {first} do not fit: "
            text += f"the current step is {current}"
        raise StepPassed(text, next_step, current)

    # --- with the profiler ----------------------------------------------------------------

    @property
    def captured_steps(self) -> tuple[int, int]:
        """The first and the last step on record."""
        return self._last - self.captured + 1, self._last

    def begin(self, step: int) -> None:
        """Start the profiler as ``step`` begins."""
        self.driven_by = thread_id()
        self.backend.begin(step, self.first)
        self._note_recording(step)

    def advance(self, step: int) -> bool:
        """Move the profiler on to ``step``; True when there is nothing more to record."""
        if self._recording_since_s:
            self._last = step - 1
            self.captured += 1
        if self.cancelled or self.cut_short or self._is_complete():
            return True
        self.backend.step(step)
        self._note_recording(step)
        return False

    def write(self) -> tuple[str, ...]:
        """Write the files of the steps on record and return their paths."""
        return self.backend.write(*self.captured_steps)

    def shortfall(self) -> str:
        """Say what is missing of the plan, and why; empty when it was carried out."""
        if self.captured >= self.plan.iterations:
            return ""
        why = self.cut_short or ("it was cancelled" if self.cancelled else "the process ended")
        return f"{self.captured} of {self.plan.iterations} steps: {why} after step {self._last}"

    def _note_recording(self, step: int) -> None:
        if step >= self.first and not self._recording_since_s:
            self._recording_since_s = time.monotonic()

    def _is_complete(self) -> bool:
        if not self._recording_since_s:
            return False
        if self.plan.iterations:
            return self.captured >= self.plan.iterations
        age_ms = (time.monotonic() - self._recording_since_s) * 1000
        return age_ms >= float(self.plan.options["duration_ms"])
