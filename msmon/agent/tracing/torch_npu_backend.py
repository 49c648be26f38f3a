"""Traces by torch_npu's profiler: one ``*_ascend_pt`` directory per rank.

Names and arguments as in torch_npu 2.13 (``profiler/profiler.py``,
``experimental_config.py``); what an older version lacks is named in the answer.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, ClassVar

from msmon.agent.tracing.ascend import EXPERIMENTAL, NEEDS, AscendBackend, Need
from msmon.agent.tracing.backend import Keywords, keyword, listed


def _profiler_module() -> Any:
    return sys.modules["torch_npu"].profiler


def _activities(value: str) -> dict[str, Any]:
    activity = _profiler_module().ProfilerActivity
    return {"activities": [getattr(activity, name) for name in value.split(",")]}


def _level(value: str) -> dict[str, Any]:
    return {"profiler_level": getattr(_profiler_module().ProfilerLevel, value)}


def _metrics(value: str) -> dict[str, Any]:
    return {"aic_metrics": getattr(_profiler_module().AiCMetrics, value)}


def _markers(value: bool) -> dict[str, Any]:
    """Return the switch for mstx markers, under the name that this torch_npu has for it.

    torch_npu 2.13 calls it ``mstx``, and warns where the older ``msprof_tx`` is used.
    """
    known = inspect.signature(_profiler_module()._ExperimentalConfig).parameters
    return {"mstx" if "mstx" in known else "msprof_tx": value}


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
        "host_sys": listed("host_sys"),
        "op_attr": keyword("op_attr"),
        "msprof_tx": _markers,
        "gc_detect_threshold": lambda ms: {"gc_detect_threshold": ms if ms >= 0 else None},
        "export_type": lambda value: {"export_type": value.lower()},
    }
    NEEDS: ClassVar[dict[str, Need]] = {
        **NEEDS,
        "gc_detect_threshold": (
            lambda options: "CPU" in options["activities"],
            "CPU among --activities",
        ),
    }
    ANALYSE = "import sys; from torch_npu.profiler.profiler import analyse; analyse(sys.argv[1])"

    def _module(self) -> Any:
        return _profiler_module()

    def _without_effect(self) -> tuple[str, ...]:
        lacking = super()._without_effect()
        if self._plan.options["op_attr"] and not getattr(self._config, "_op_attr", True):
            # torch_npu has set the option back: this CANN makes the attributes for Db only
            lacking += ("--op-attr (needs --export-type Db)",)
        return lacking

    def _make_profiler(self, step: int, warmup: int) -> Any:
        profiler = super()._make_profiler(step, warmup)
        # the numbers of its ProfilerStep annotations are the training's own
        profiler._set_step_num_offset_for_dynamic_prof(step)
        return profiler
