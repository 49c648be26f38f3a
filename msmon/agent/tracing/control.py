"""Trace commands in this process: checked, then handed to the tracer."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from msmon.agent.steps.counter import StepCounter
from msmon.agent.tracing import job_profilers
from msmon.agent.tracing.backend import Backend, load_backends, make_backend
from msmon.agent.tracing.plan import TracePlan
from msmon.agent.tracing.trace_run import StepPassed
from msmon.agent.tracing.tracer import Tracer
from msmon.bus.messages import Answer
from msmon.errors import CommandRefused, UsageError
from msmon.sessions import ProcessInfo
from msmon.settings.trace_options import check_trace

NO_STEP_HINT_S = 10.0
"""A process without a step for so long is said to make none."""


class TraceControl:
    """Carries out trace commands on the collector's thread. It has no state of its own."""

    def __init__(
        self, tracer: Tracer, steps: StepCounter, identity: Callable[[], ProcessInfo]
    ) -> None:
        load_backends()
        self._tracer = tracer
        self._steps = steps
        self._identity = identity

    @property
    def holder(self) -> str:
        """What holds this process for a trace; empty when nothing does."""
        return self._tracer.holder

    def start(self, fields: Mapping[str, Any], monitoring: str, recording: str) -> Answer:
        """Accept a trace.

        ``monitoring`` names the npu-monitor session of this process, ``recording`` whatever
        has subscribed to MSPTI (that session or a Monitor of the job); empty: nothing.

        Raises CommandRefused and UsageError; then nothing has changed.
        """
        options = dict(fields)
        pause_monitor = bool(options.pop("pause_monitor", False))
        who = self._identity()
        owner = f"{who.host}_{who.pid}_rank{who.rank}"
        plan = TracePlan(secrets.token_hex(16), check_trace(options), owner)
        if monitoring and not pause_monitor:
            raise CommandRefused(
                f"{monitoring} is recording in this process",
                "stop it, or give --pause-monitor to have it paused for the trace",
            )
        if recording and not monitoring:
            raise CommandRefused(f"{recording} is recording in this process", "stop it first")
        backend = make_backend(plan)
        _prepare_directory(plan.directory)
        try:
            self._tracer.arm(plan, backend, pause_monitor and bool(monitoring))
        except StepPassed as error:
            return Answer(False, error.message, error.next_step, step=error.step)
        text = self._accepted(plan, backend)
        return Answer(True, text, "", plan.trace_id, step=self._steps.count)

    def cancel(self, fields: Mapping[str, Any]) -> Answer:
        """Cancel the trace of this process. Raises CommandRefused when there is none."""
        if fields:
            raise UsageError(f"cancel takes no options, got {', '.join(sorted(fields))}")
        trace_id = self._tracer.progress.trace_id
        return Answer(True, self._tracer.cancel(), "", trace_id, step=self._steps.count)

    def _accepted(self, plan: TracePlan, backend: Backend) -> str:
        text = f"{backend.name} will trace {plan.describe()}; {self._step_text()}"
        profiler = job_profilers.shared.at_work()
        if profiler:
            text += f"; {profiler} of the job is at work, and the trace can't begin before its end"
        if backend.left_out:
            text += f"; {backend.name} can't honour {', '.join(backend.left_out)}"
        return text

    def _step_text(self) -> str:
        age_s = self._steps.age_s
        if age_s < 0:
            return "no step was seen yet: the trace begins once this process makes steps"
        if age_s > NO_STEP_HINT_S:
            return f"no step was seen for {age_s:.0f} s, the current one is {self._steps.count}"
        return f"the current step is {self._steps.count}"


def _prepare_directory(path: str) -> None:
    """Make the directory if need be. Raises CommandRefused when no file can be made there."""
    if not os.path.isabs(path):
        raise UsageError(f"--log-file: {path!r} is not an absolute path")
    try:
        os.makedirs(path, 0o750, exist_ok=True)
    except OSError as error:
        raise CommandRefused(
            f"{path} can't be made by the job: {error.strerror}", "name another directory"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise CommandRefused(f"the job may not write to {path}", "name another directory")
