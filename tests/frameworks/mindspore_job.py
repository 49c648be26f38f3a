"""One rank under MindSpore's own dynamic profiler. It makes steps until its standard input ends.

    mindspore_job.py SOURCES MEMORY_NAME

SOURCES is an unpacked wheel. The dynamic profiler and the modules of mindspore.profiler.common that
it uses are the wheel's files. The rest of MindSpore needs compiled code, so it is replaced by
empty modules.
"""

from __future__ import annotations

import importlib
import os
import select
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from torch_npu_sources import Shell

SHELLS = (
    *("mindspore.train", "mindspore.profiler.profiler", "mindspore.profiler.experimental_config"),
    *("mindspore.profiler.profiler_interface", "mindspore.communication", "mindspore.log"),
    "mindspore.communication.management",
)


class Clock:
    """Replaces the module ``time``, because the profiler names the shared memory after the time."""

    def __init__(self, memory_name: str) -> None:
        self._memory_name = memory_name

    def strftime(self, *_: Any) -> str:
        return self._memory_name

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def install(sources: str) -> None:
    """Make modules that replace the rest of MindSpore, so that the wheel's profiler imports."""
    for name in ("mindspore", "mindspore.profiler"):
        package = Shell(name)
        package.__path__ = [str(Path(sources, *name.split(".")))]
        sys.modules[name] = package
    for name in SHELLS:
        sys.modules[name] = Shell(name)
        parent, _, child = name.rpartition(".")
        setattr(sys.modules[parent], child, sys.modules[name])
    sys.modules["mindspore.communication"].get_rank = no_communicator  # type: ignore[attr-defined]
    sys.modules["mindspore.train"].Callback = object  # type: ignore[attr-defined]


def no_communicator() -> int:
    """Fail as get_rank does before communication is set up. The profiler then uses RANK_ID."""
    raise RuntimeError


def dynamic_profiler(sources: str, memory_name: str) -> ModuleType:
    """Return MindSpore's module. Its shared memory has the given name."""
    install(sources)
    module = importlib.import_module("mindspore.profiler.dynamic_profiler")
    module.time = Clock(memory_name)  # type: ignore[attr-defined]
    return module


def main() -> None:
    sources, memory_name = sys.argv[1:]
    os.environ["MSMONITOR_USE_DAEMON"] = (
        "1"  # Set only now, so that an installed msmon-autostart.pth did not act on it.
    )
    monitor = dynamic_profiler(sources, memory_name).DynamicProfilerMonitor(poll_interval=1)
    print("training", flush=True)
    slowest_s = 0.0
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        began_s = time.perf_counter()
        monitor.step()
        slowest_s = max(slowest_s, time.perf_counter() - began_s)
    print("slowest step:", slowest_s, flush=True)


if __name__ == "__main__":
    main()
