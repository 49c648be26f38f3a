"""Takes one trace with torch_npu's own profiler. Its compiled code is replaced by recorders.

    torch_npu_trace.py SOURCES OPTIONS

OPTIONS are the fields of a trace as JSON. Prints one line of JSON: the calls of the compiled code,
the options without effect, and the files.
"""

from __future__ import annotations

import enum
import json
import sys
from types import ModuleType
from typing import Any

import torch
import torch_npu_sources

from msmon.agent.tracing.backend import make_backend
from msmon.agent.tracing.plan import TracePlan
from msmon.settings.trace_options import check_trace

FIRST, WARMUP = 10, 2
CALLS: list[str] = []
NOTED = ("_init_profiler", "_warmup_profiler", "_start_profiler", "_stop_profiler")


class Activity(enum.Enum):
    CPU = 0
    NPU = 1


class Event:
    """The class whose methods the profiler wraps."""

    record = wait = query = elapsed_time = synchronize = lambda self: None


class Config(dict):  # type: ignore[type-arg]
    """Replaces the compiled ``_ExperimentalConfig``."""

    last: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)
        Config.last = fields


class ProfilerConfig:
    """Replaces the compiled ``NpuProfilerConfig``."""

    last: tuple[Any, ...] = ()

    def __init__(self, path: str, *switches: Any) -> None:
        ProfilerConfig.last = switches[:-1]


def compiled_parts(native: ModuleType) -> None:
    """Replace ``torch_npu._C._profiler`` by a module that records its calls."""
    parts: dict[str, Any] = {
        name: lambda *_, name=name: CALLS.append(name) for name in (*NOTED, "_finalize_profiler")
    }
    parts |= {"ProfilerActivity": Activity, "_ExperimentalConfig": Config}
    parts |= {"NpuProfilerConfig": ProfilerConfig, "_supported_npu_activities": lambda: {*Activity}}
    parts |= {"_get_syscnt_enable": lambda: False, "_get_monotonic": lambda: 0}
    for name, part in parts.items():
        setattr(native, name, part)


def prepare(sources: str) -> None:
    """Import torch_npu's profiler, with its compiled code replaced."""
    torch_npu_sources.install(sources)
    compiled_parts(sys.modules["torch_npu._C._profiler"])
    npu: Any = sys.modules["torch_npu.npu"]
    npu.Event, npu._lazy_init, npu.synchronize = Event, lambda: None, lambda: None
    torch.npu = npu  # type: ignore[attr-defined]
    versions: Any = sys.modules["torch_npu.utils.collect_env"]
    versions.get_torch_npu_version = versions.get_cann_version = lambda: "0"
    import torch_npu.profiler  # noqa: F401


def main() -> None:
    sources, options = sys.argv[1], json.loads(sys.argv[2])
    prepare(sources)
    plan = TracePlan("trace", check_trace({"warmup": WARMUP, **options}), "node_1_rank0")
    backend = make_backend(plan)
    backend.begin(FIRST - WARMUP, FIRST)
    last = FIRST + plan.iterations - 1
    for step in range(FIRST - WARMUP + 1, last + 1):
        backend.step(step)
    backend.end()
    files = backend.write(FIRST, last)
    told = {"calls": CALLS, "config": Config.last, "switches": ProfilerConfig.last}
    print(json.dumps({**told, "left_out": backend.left_out, "files": files}))


if __name__ == "__main__":
    main()
