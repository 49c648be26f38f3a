"""Traces by MindSpore's profiler: one ``*_ascend_ms`` directory per rank.

Names and arguments as in MindSpore 2.10 (``mindspore/profiler/profiler.py``,
``experimental_config.py``); what an older version lacks is named in the answer. Its step
numbers begin at 0 with the trace; the ones asked for are in the answer and in the status.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

from msmon.agent.tracing.ascend import EXPERIMENTAL, NEEDS, AscendBackend, Need
from msmon.agent.tracing.backend import Keywords, keyword
from msmon.agent.tracing.plan import TracePlan


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


def _host_systems(value: str) -> dict[str, Any]:
    if not value:
        return {}
    systems = _profiler_module().HostSystem
    return {"host_sys": [getattr(systems, name.upper()) for name in value.split(",")]}


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
        "host_sys": _host_systems,
        "export_type": _export_type,
    }
    NEEDS: ClassVar[dict[str, Need]] = {
        **NEEDS,
        "profiler_level": (
            lambda options: options["profiler_level"] != "Level_none" or options["msprof_tx"],
            "--msprof-tx for Level_none",
        ),
    }
    ANALYSE = (
        "import sys; from mindspore.profiler.profiler import analyse; "
        "analyse(sys.argv[1], data_simplification=sys.argv[2] == 'true')"
    )

    def __init__(self, plan: TracePlan) -> None:
        super().__init__(plan)
        self._arguments["start_profile"] = False  # else the constructor starts it

    def _module(self) -> Any:
        return _profiler_module()
