"""The step counter: what the training loop pays for is one addition and one clock read."""

from __future__ import annotations

import time


class StepCounter:
    """Counts training steps; advanced by the training thread, read by the agent's."""

    __slots__ = ("count", "last_monotonic_s")

    def __init__(self) -> None:
        self.count = 0
        self.last_monotonic_s = 0.0

    def advance(self) -> None:
        """Note that a step has ended."""
        self.count += 1
        self.last_monotonic_s = time.monotonic()

    @property
    def current(self) -> int:
        """Steps so far; -1 when none was seen."""
        return self.count or -1

    @property
    def age_s(self) -> float:
        """Seconds since the last step; -1 when none was seen."""
        return time.monotonic() - self.last_monotonic_s if self.count else -1.0
