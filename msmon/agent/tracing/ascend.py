"""What the Ascend profilers of torch_npu and MindSpore have in common.

Both write raw data into a new directory and parse it afterwards. Parsing is done by a
process of its own: it can't hold up a step through the GIL, and it works in workers that
may not have children of multiprocessing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from msmon.agent.tracing.backend import Keywords, listed, not_honoured
from msmon.agent.tracing.plan import TracePlan

ENDLESS = 2**31 - 1
"""Active steps of the schedule: the profiler is stopped, it does not stop by itself."""

NOT_INHERITED = ("MSMONITOR_USE_DAEMON", "KINETO_USE_DAEMON", "LD_PRELOAD")
"""Variables that would make the parsing process a rank, or load MSPTI into it."""

_SHOWN_CHARACTERS = 300

EXPERIMENTAL: dict[str, Keywords] = {
    "l2_cache": lambda value: {"l2_cache": value},
    "data_simplification": lambda value: {"data_simplification": value == "true"},
    "mstx_domain_include": listed("mstx_domain_include"),
    "mstx_domain_exclude": listed("mstx_domain_exclude"),
    "host_sys": listed("host_sys"),
    "sys_io": lambda value: {"sys_io": value},
    "sys_interconnection": lambda value: {"sys_interconnection": value},
}
"""Options of a trace → arguments of both ``_ExperimentalConfig`` classes."""


class AscendBackend:
    """See :class:`msmon.agent.tracing.backend.Backend`; subclasses make the profiler."""

    name: str = ""
    OPTIONS: ClassVar[Mapping[str, Keywords]] = {}
    EXPERIMENTAL_OPTIONS: ClassVar[Mapping[str, Keywords]] = {}
    ANALYSE: ClassVar[str] = ""
    """Python program that parses the directory in ``sys.argv[1]``."""

    def __init__(self, plan: TracePlan) -> None:
        self._plan = plan
        self._profiler: Any = None
        self._before: set[str] = set()
        self.left_out = not_honoured(plan.options, self.OPTIONS, self.EXPERIMENTAL_OPTIONS)

    def begin(self, step: int, first: int) -> None:
        """Start the profiler; its schedule counts the warm-up."""
        self._before = set(os.listdir(self._plan.directory))
        self._profiler = self._make_profiler(step, warmup=first - step)
        self._profiler.start()

    def step(self, step: int) -> None:
        """Tell the profiler that a step begins."""
        self._profiler.step()

    def end(self) -> None:
        """Stop the profiler."""
        profiler, self._profiler = self._profiler, None
        profiler.stop()

    def write(self, first: int, last: int) -> tuple[str, ...]:
        """Return the directory of the raw data, parsed where that was asked for.

        Raises RuntimeError when there is none, or parsing fails.
        """
        owner = f"_{os.getpid()}_"
        new = sorted(set(os.listdir(self._plan.directory)) - self._before)
        paths = tuple(str(Path(self._plan.directory, name)) for name in new if owner in name)
        if not paths:
            raise RuntimeError("the profiler has written nothing; the job's output may say why")
        if self._plan.options["analyse"]:
            for path in paths:
                self._parse(path)
        return paths

    def discard(self) -> None:
        """Stop the profiler; its raw data stays."""
        if self._profiler is not None:
            self.end()

    def _make_profiler(self, step: int, warmup: int) -> Any:
        raise NotImplementedError

    def _parse(self, path: str) -> None:
        environ = {name: text for name, text in os.environ.items() if name not in NOT_INHERITED}
        done = subprocess.run(
            [sys.executable, "-c", self.ANALYSE, path],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()[-_SHOWN_CHARACTERS:]
            raise RuntimeError(f"parsing {path} ended with code {done.returncode}: {said}")
