"""Wall-clock times from the monotonic clock, which nobody can set."""

from __future__ import annotations

import time

JUMP_NS = 1_000_000_000
"""A smaller difference is what NTP corrects by slewing, and no jump."""


class WallClock:
    """Tells the wall clock's time of moments that were taken on the monotonic clock.

    The two are compared once, at the start. So the windows of a session follow each other
    without gap or overlap even while somebody sets the clock; :meth:`follow` then takes the
    step over, once per window. Used on one thread.
    """

    def __init__(self) -> None:
        self._anchor_ns = time.time_ns() - int(time.monotonic() * 1e9)

    def at_ns(self, monotonic_s: float) -> int:
        """Return the wall clock's time at a moment, in ns since 1970."""
        return self._anchor_ns + int(monotonic_s * 1e9)

    def follow(self) -> int:
        """Take over a step of the wall clock and return it in ns; 0 where there was none."""
        jump_ns = time.time_ns() - self.at_ns(time.monotonic())
        if abs(jump_ns) <= JUMP_NS:
            return 0
        self._anchor_ns += jump_ns
        return jump_ns
