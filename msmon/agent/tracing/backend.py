"""What a trace needs from a framework's profiler, and which profiler this process has."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msmon.agent.tracing.plan import TracePlan
from msmon.errors import CommandRefused
from msmon.settings.trace_options import TRACE_OPTIONS

Keywords = Callable[[Any], "dict[str, Any]"]
"""Turns the value of one option into keyword arguments of a profiler."""

OUR_OPTIONS = frozenset(
    {
        *("iterations", "start_step", "warmup", "start_time_ms", "duration_ms"),
        *("log_file", "analyse", "async_mode"),
    }
)
"""Options that the tracer carries out itself; no profiler is told of them."""

BACKENDS = {
    "torch_npu": ("msmon.agent.tracing.torch_npu_backend", "TorchNpuBackend"),
    "mindspore": ("msmon.agent.tracing.mindspore_backend", "MindSporeBackend"),
    "torch": ("msmon.agent.tracing.torch_backend", "TorchBackend"),
}
"""Framework → its backend. The first that the job has imported is used: torch_npu before torch,
because a job of torch_npu imports both."""


class Backend(Protocol):
    """One trace by one profiler. All but :meth:`write` run on the thread that steps.

    Whatever a method raises ends the trace as failed, and nothing else.
    """

    name: str
    left_out: tuple[str, ...]
    """Flags of options that were asked for and can't be honoured."""

    def begin(self, step: int, first: int) -> None:
        """Start the profiler as ``step`` begins; steps before ``first`` are warm-up."""

    def step(self, step: int) -> None:
        """Note that the step before ``step`` has ended and ``step`` begins."""

    def end(self) -> None:
        """Stop the profiler; what it has recorded stays in memory or in raw files."""

    def write(self, first: int, last: int) -> tuple[str, ...]:
        """Write the files of these steps and return their paths; may take long, on any thread."""

    def discard(self) -> None:
        """Stop the profiler if it runs, and forget what it has recorded."""


def load_backends() -> None:
    """Import all backends. When a trace is asked for, another msmon may be installed."""
    for module, _ in BACKENDS.values():
        importlib.import_module(module)


def make_backend(plan: TracePlan) -> Backend:
    """Return the backend of the framework in this process.

    Raises CommandRefused when no supported framework has been imported.
    """
    for framework, (module, name) in BACKENDS.items():
        if framework in sys.modules:
            backend: Backend = getattr(importlib.import_module(module), name)(plan)
            return backend
    raise CommandRefused(
        f"this process has imported none of {', '.join(BACKENDS)}, so there is no profiler",
        "nputrace works in jobs of PyTorch and MindSpore",
    )


def keyword(name: str) -> Keywords:
    """Return the mapping of an option that a profiler has under ``name``, with equal values."""
    return lambda value: {name: value}


def listed(name: str) -> Keywords:
    """Return the mapping of a comma list to a list argument."""
    return lambda value: {name: value.split(",")} if value else {}


def arguments(options: Mapping[str, Any], table: Mapping[str, Keywords]) -> dict[str, Any]:
    """Return the keyword arguments that a table makes of the options of a trace."""
    result: dict[str, Any] = {}
    for name, keywords in table.items():
        result.update(keywords(options[name]))
    return result


def not_honoured(options: Mapping[str, Any], *tables: Mapping[str, Keywords]) -> tuple[str, ...]:
    """Return the flags of options that were asked for and are in none of the tables."""
    known = OUR_OPTIONS.union(*tables)
    return tuple(
        option.flag
        for option in TRACE_OPTIONS
        if option.name not in known and options[option.name] != option.default
    )
