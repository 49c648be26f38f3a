"""The windows of one session: what was recorded per report interval, as statistics."""

from __future__ import annotations

import time
from collections import Counter

from msmon.agent.wall_clock import WallClock
from msmon.records.batch import Batch
from msmon.records.statistics import WindowStatistics
from msmon.records.windows import Window


class WindowSeries:
    """The window that is open, and the numbers of those before it.

    Written by the collector's thread only. Windows begin and end at moments of ``clock``, so
    they follow each other without gap or overlap.
    """

    def __init__(self, clock: WallClock) -> None:
        self.untimed: Counter[str] = Counter()
        """Records per kind name whose times are no times, in all windows closed so far."""
        self._clock = clock
        self._statistics = WindowStatistics()
        self._index = 0
        self._start_s = time.monotonic()

    @property
    def evicted_ranges(self) -> int:
        """Ranges of markers given up before their end, because too many were open."""
        return self._statistics.evicted_ranges

    @property
    def open_ranges(self) -> int:
        """Ranges of markers that have a start and no end yet."""
        return self._statistics.open_ranges

    def begin(self) -> None:
        """Have the open window begin now: nothing was recorded before."""
        self._start_s = time.monotonic()

    def end_s(self, interval_s: float) -> float:
        """Return when a window of this length is over, on the monotonic clock."""
        return self._start_s + interval_s

    def add(self, batch: Batch, received: int) -> None:
        """Take the records that the filter has kept of ``received`` ones."""
        self._statistics.add(batch, received=received)

    def close(self, step: int) -> Window:
        """End the open window, begin the next, and return the one that has ended.

        ``step`` is the training step at this moment, -1 if unknown.
        """
        now_s = time.monotonic()
        start_ns, end_ns = self._clock.at_ns(self._start_s), self._clock.at_ns(now_s)
        window = self._statistics.close(self._index, start_ns, end_ns, step)
        self.untimed.update(window.untimed)
        self._index += 1
        self._start_s = now_s
        return window
