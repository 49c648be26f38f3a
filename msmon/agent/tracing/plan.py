"""What a trace is to do.

Step N is what the process does between its Nth and its (N+1)th call of ``step()``: the
number that a loop counting from 0 gives it, and the number in torch_npu's own traces.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TracePlan:
    """One trace of this process. ``options`` are the checked fields of ``TRACE_OPTIONS``."""

    trace_id: str
    options: Mapping[str, Any]
    owner: str
    """``<host>_<pid>_rank<r>``: how the names of its files begin."""

    @property
    def warmup(self) -> int:
        """Steps under the profiler before the first traced one."""
        return int(self.options["warmup"])

    @property
    def iterations(self) -> int:
        """Steps to trace; 0: as many as fit into the duration."""
        return int(self.options["iterations"])

    @property
    def first_step(self) -> int | None:
        """The first step to trace; None: the next that can be."""
        first = int(self.options["start_step"])
        return first if first >= 0 else None

    @property
    def directory(self) -> str:
        """Where the files go."""
        return str(self.options["log_file"])

    @property
    def is_early(self) -> bool:
        """Whether the moment has not come before which the trace must not start."""
        return time.time() * 1000 < int(self.options["start_time_ms"])

    def describe(self) -> str:
        """Return what is to be traced, for people."""
        first = self.first_step
        if not self.iterations:
            start = "the next step" if first is None else f"step {first}"
            return f"{self.options['duration_ms']} ms from {start} on"
        if first is None:
            return f"{self.iterations} steps from the next one on"
        last = first + self.iterations - 1
        return f"step {first}" if last == first else f"steps {first} to {last}"
