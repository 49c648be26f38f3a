"""Traces by MindSpore's profiler: one ``*_ascend_ms`` directory per rank.

Names and arguments as in MindSpore 2.7 (``mindspore.profiler``). Its step numbers begin
at 0 with the trace; the ones asked for are in the answer and in the status.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

from msmon.agent.tracing.ascend import ENDLESS, EXPERIMENTAL, AscendBackend
from msmon.agent.tracing.backend import Keywords, arguments, keyword


def _profiler_module() -> Any:
    return importlib.import_module("mindspore.profiler")


def _activities(value: str) -> dict[str, Any]:
    activity = _profiler_module().ProfilerActivity
    return {"activities": [getattr(activity, name) for name in value.split(",")]}


def _level(value: str) -> dict[str, Any]:
    levels = _profiler_module().ProfilerLevel
    return {"profiler_level": getattr(levels, value.replace("Level_none", "LevelNone"))}


def _metrics(value: str) -> dict[str, Any]:
    return {"aic_metrics": getattr(_profiler_module().AicoreMetrics, value)}


def _export_type(value: str) -> dict[str, Any]:
    return {"export_type": [getattr(_profiler_module().ExportType, value)]}


class MindSporeBackend(AscendBackend):
    """See :class:`msmon.agent.tracing.backend.Backend`."""

    name = "mindspore.profiler"
    OPTIONS: ClassVar[dict[str, Keywords]] = {
        "activities": _activities,
        "profile_memory": keyword("profile_memory"),
        "with_stack": keyword("with_stack"),
        "record_shapes": keyword("record_shapes"),
    }
    EXPERIMENTAL_OPTIONS: ClassVar[dict[str, Keywords]] = {
        **EXPERIMENTAL,
        "profiler_level": _level,
        "aic_metrics": _metrics,
        "msprof_tx": keyword("mstx"),
        "export_type": _export_type,
    }
    ANALYSE = "import sys; from mindspore.profiler.profiler import analyse; analyse(sys.argv[1])"

    def _make_profiler(self, step: int, warmup: int) -> Any:
        module, options = _profiler_module(), self._plan.options
        experimental = arguments(options, self.EXPERIMENTAL_OPTIONS)
        return module.profile(
            **arguments(options, self.OPTIONS),
            start_profile=False,
            schedule=module.schedule(wait=0, warmup=warmup, active=ENDLESS, repeat=1),
            on_trace_ready=module.tensorboard_trace_handler(
                self._plan.directory, analyse_flag=False
            ),
            experimental_config=module._ExperimentalConfig(**experimental),
        )
