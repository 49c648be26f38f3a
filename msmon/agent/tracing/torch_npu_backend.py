"""Traces by torch_npu's profiler: one ``*_ascend_pt`` directory per rank.

Names and arguments as in torch_npu 2.13 (``profiler/profiler.py``,
``experimental_config.py``); what an older version lacks is named in the answer.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, ClassVar

from msmon.agent.tracing.ascend import ENDLESS, EXPERIMENTAL, AscendBackend
from msmon.agent.tracing.backend import Keywords, arguments, keyword, not_honoured
from msmon.agent.tracing.plan import TracePlan


def _profiler_module() -> Any:
    return sys.modules["torch_npu"].profiler


def _activities(value: str) -> dict[str, Any]:
    activity = _profiler_module().ProfilerActivity
    return {"activities": [getattr(activity, name) for name in value.split(",")]}


def _level(value: str) -> dict[str, Any]:
    return {"profiler_level": getattr(_profiler_module().ProfilerLevel, value)}


def _metrics(value: str) -> dict[str, Any]:
    return {"aic_metrics": getattr(_profiler_module().AiCMetrics, value)}


class TorchNpuBackend(AscendBackend):
    """See :class:`msmon.agent.tracing.backend.Backend`."""

    name = "torch_npu.profiler"
    OPTIONS: ClassVar[dict[str, Keywords]] = {
        "activities": _activities,
        "record_shapes": keyword("record_shapes"),
        "profile_memory": keyword("profile_memory"),
        "with_stack": keyword("with_stack"),
        "with_flops": keyword("with_flops"),
        "with_modules": keyword("with_modules"),
    }
    EXPERIMENTAL_OPTIONS: ClassVar[dict[str, Keywords]] = {
        **EXPERIMENTAL,
        "profiler_level": _level,
        "aic_metrics": _metrics,
        "op_attr": keyword("op_attr"),
        "msprof_tx": keyword("msprof_tx"),
        "gc_detect_threshold": lambda ms: {"gc_detect_threshold": ms if ms >= 0 else None},
        "export_type": lambda value: {"export_type": value.lower()},
    }
    ANALYSE = "import sys; from torch_npu.profiler.profiler import analyse; analyse(sys.argv[1])"

    def __init__(self, plan: TracePlan) -> None:
        super().__init__(plan)
        known = inspect.signature(_profiler_module()._ExperimentalConfig.__init__).parameters
        self._experimental = {
            name: keywords
            for name, keywords in self.EXPERIMENTAL_OPTIONS.items()
            if known.keys() >= keywords(plan.options[name]).keys()
        }
        self.left_out = not_honoured(plan.options, self.OPTIONS, self._experimental)

    def _make_profiler(self, step: int, warmup: int) -> Any:
        module, options = _profiler_module(), self._plan.options
        experimental = arguments(options, self._experimental)
        profiler = module.profile(
            **arguments(options, self.OPTIONS),
            schedule=module.schedule(wait=0, warmup=warmup, active=ENDLESS, repeat=1),
            on_trace_ready=module.tensorboard_trace_handler(
                self._plan.directory, analyse_flag=False
            ),
            experimental_config=module._ExperimentalConfig(**experimental),
        )
        # the numbers of its ProfilerStep annotations are the training's own
        profiler._set_step_num_offset_for_dynamic_prof(step)
        return profiler
