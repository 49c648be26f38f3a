"""Traces by torch.profiler (CPU and GPU): one Chrome trace per rank.

torch.profiler's own schedule counts steps from 0. So its low-level part is used, and the step
annotations are made here with the numbers of the training. Writing the file releases the GIL
(torch/csrc/autograd/init.cpp), so the training can go on meanwhile.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from msmon.agent.tracing.backend import Keywords, arguments, keyword, not_honoured
from msmon.agent.tracing.job_profilers import torch_is_on
from msmon.agent.tracing.plan import TracePlan
from msmon.agent.tracing.private_directory import private_directory
from msmon.settings.trace_options import TRACE_OPTION

STEP_NAME = "ProfilerStep#{}"
"""torch.profiler's own annotation of a step; TensorBoard and others look for it."""


def _activities(value: str) -> dict[str, Any]:
    """ "NPU" stands for whatever accelerator this build of PyTorch has."""
    activity = _torch().profiler.ProfilerActivity
    wanted = value.split(",")
    chosen = {activity.CPU} if "CPU" in wanted else set()
    if "NPU" in wanted:
        chosen |= _torch().profiler.supported_activities() - {activity.CPU}
    return {"activities": sorted(chosen or {activity.CPU}, key=int)}


OPTIONS: dict[str, Keywords] = {
    "activities": _activities,
    "record_shapes": keyword("record_shapes"),
    "profile_memory": keyword("profile_memory"),
    "with_stack": keyword("with_stack"),
    "with_flops": keyword("with_flops"),
    "with_modules": keyword("with_modules"),
}
"""Options of a trace → arguments of torch.profiler."""


def _torch() -> Any:
    return sys.modules["torch"]


class TorchBackend:
    """See :class:`msmon.agent.tracing.backend.Backend`.

    Written by the thread that steps, or by the one that ends the process, and in :meth:`write`
    by the one that writes; never by two at a time.
    """

    name = "torch.profiler"

    def __init__(self, plan: TracePlan) -> None:
        self._plan = plan
        self._profiler: Any = None
        self._annotation: Any = None
        self._first = 0
        self._recording = False
        self.left_out = not_honoured(plan.options, OPTIONS)
        if plan.options["activities"] == "NPU" and not self._has_accelerator():
            self.left_out += (f"{TRACE_OPTION['activities'].flag} NPU (no device: CPU instead)",)

    def begin(self, step: int, first: int) -> None:
        """Prepare the profiler; it records from ``first`` on."""
        self._first = first
        self._profiler = _torch().profiler._KinetoProfile(**arguments(self._plan.options, OPTIONS))
        self._profiler.prepare_trace()
        self.step(step)

    def step(self, step: int) -> None:
        """Close the annotation of the step that has ended and open the next."""
        if step < self._first:
            return
        if not self._recording:
            self._profiler.start_trace()
            self._recording = True
        self._close_annotation()
        self._annotation = _torch().profiler.record_function(STEP_NAME.format(step))
        self._annotation.__enter__()

    def end(self) -> None:
        """Stop recording."""
        if not torch_is_on():
            self._profiler = self._annotation = None  # what is on now is not ours to stop
            raise RuntimeError("somebody else has stopped the profiler, or another thread stops it")
        self._close_annotation()
        self._recording = False
        self._profiler.stop_trace()

    def write(self, first: int, last: int) -> tuple[str, ...]:
        """Write the Chrome trace; a reader never sees half of it. Raises OSError."""
        stamp = time.strftime("%Y%m%d%H%M%S") + f"{time.time_ns() // 1_000_000 % 1000:03}"
        name = f"{self._plan.owner}_steps{first}-{last}_{stamp}.pt.trace.json"
        path = Path(self._plan.directory, name)
        profiler, self._profiler = self._profiler, None
        with private_directory(self._plan.directory) as private:
            unfinished = f"{private}/{name}"
            profiler.export_chrome_trace(unfinished)
            os.replace(unfinished, path)
        return (str(path),)

    def discard(self) -> None:
        """Stop recording and keep nothing."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        if not self._recording:  # prepared only: a profiler must be started to be stopped
            profiler.start_trace()
        self._recording = False
        if torch_is_on():
            self._close_annotation()
            profiler.stop_trace()

    def _close_annotation(self) -> None:
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)

    @staticmethod
    def _has_accelerator() -> bool:
        profiler = _torch().profiler
        return bool(profiler.supported_activities() - {profiler.ProfilerActivity.CPU})
