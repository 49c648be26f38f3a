"""What is normal for a series, and when it has changed.

A series is one number per window, such as the step time of a job or a rank's own work against its
peers. Its noise differs: 0.5 % between ranks of an even job, ten times that with sequences of
uneven length. So each series learns its own middle and spread from its healthy windows, and a
change is what sums up beyond them (CUSUM): one bad window is never enough, a small lasting change
is.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from msmon.records.batch import Column

HISTORY = 40
"""Healthy windows that are remembered."""

FEWEST = 8
"""Healthy windows before a series can tell a change."""

NOISE_FLOOR = 0.005
NOISE_MARGIN = 1.25
"""The spread of a few windows is an estimate; this much is added."""

MAD_TO_SIGMA = 1.4826
TENTH_TO_SIGMA = 1.2816
"""Sigmas above the middle at which the upper tenth of normal noise begins."""

LARGEST_STEP = 3.0
"""A window counts for at most so many sigmas, so that a single one decides nothing."""

SLACK = 1.0
"""Sigmas per window that are never counted."""

THRESHOLD = 10.0
SUSPECT = THRESHOLD / 2
"""What sums up beyond this is not learnt from. Below it nearly all is noise, and who learnt from
the lower values only would take the middle and the spread for smaller than they are."""

QUARANTINE = 5
"""Windows after which a value is learnt from, if nothing has summed up by then. A change is noticed
within them, so the baseline does not learn from the first windows of a fault."""

LEAST_EFFECT = 0.03
LEAST_EFFECT_SIGMAS = 1.5

NEVER = -1


class SeriesSet:
    """Many series, numbered from 0; larger is worse. Belongs to one thread.

    It grows with the values that it gets. ``effect`` is the last value against what is normal
    (0.1: 10 % more; 0 while too little is known), ``sigma`` the spread of what is normal, both of
    shape (series,).
    """

    def __init__(self, alike: bool = False) -> None:
        """``alike``: the series are of one kind and have about the same noise. Each one's own few
        windows may look calmer than it is, so none counts as calmer than most."""
        self._alike = alike
        self._healthy = np.full((0, HISTORY), np.nan)
        self._next = np.zeros(0, np.int64)
        self._waiting: deque[Column] = deque()
        self._sum = np.zeros(0)
        self._rising_since = np.zeros(0, np.int64)
        self.effect = np.zeros(0)
        self.sigma = np.zeros(0)

    def add(self, number: int, values: Column, healthy: Column) -> None:
        """Take the values of window ``number``; NaN where a series has none.

        ``healthy`` (bool) is False where something is known to be wrong. Such a value is judged,
        but the baseline does not learn from it, so that a fault never becomes normal.
        """
        self._grow(len(values))
        middle, self.sigma = self._learnt()
        known = ~np.isnan(values) & (middle > 0)
        effect = np.zeros(len(values))
        np.divide(values, middle, out=effect, where=known)
        self.effect = np.where(known, effect - 1, 0.0)
        step = np.clip(self.effect / self.sigma, -LARGEST_STEP, LARGEST_STEP) - SLACK
        summed = np.clip(self._sum + step, 0.0, 2 * THRESHOLD)
        self._sum = np.where(known, summed, self._sum)
        self._rising_since[(self._rising_since == NEVER) & (self._sum > 0)] = number
        self._rising_since[self._sum == 0] = NEVER
        self._waiting.append(np.where(healthy, values, np.nan))
        if len(self._waiting) > QUARANTINE:
            self._remember(self._waiting.popleft())

    def changed_at(self) -> Column:
        """Return since which window each series is worse than it was, or ``NEVER``."""
        enough = self.effect > np.maximum(LEAST_EFFECT, LEAST_EFFECT_SIGMAS * self.sigma)
        changed: Column = np.where((self._sum >= THRESHOLD) & enough, self._rising_since, NEVER)
        return changed

    def _grow(self, size: int) -> None:
        more = size - len(self._sum)
        if more > 0:
            self._healthy = np.vstack([self._healthy, np.full((more, HISTORY), np.nan)])
            self._next = np.append(self._next, np.zeros(more, np.int64))
            self._sum = np.append(self._sum, np.zeros(more))
            self._rising_since = np.append(self._rising_since, np.full(more, NEVER))

    def _learnt(self) -> tuple[Column, Column]:
        """Return the middle of each series (0: too few windows) and its relative spread."""
        count = np.minimum(self._next, HISTORY)
        middle = _medians(self._healthy, count)
        enough = (count >= FEWEST) & (middle > 0)
        middle = np.where(enough, middle, 0.0)
        deviation = np.abs(self._healthy / np.where(enough, middle, 1.0)[:, None] - 1)
        spread = np.where(enough, _medians(deviation, count), 0.0)
        sigma = np.maximum(MAD_TO_SIGMA * spread, self._tail(middle, count))
        if self._alike and enough.any():
            sigma = np.maximum(sigma, np.median(sigma[enough]))
        return middle, NOISE_MARGIN * np.maximum(sigma, NOISE_FLOOR)

    def _tail(self, middle: Column, count: Column) -> Column:
        """Return the spread that the upper tenth of the healthy values tells. Where a few windows
        are much worse, as with hiccups, the middle ones say too little."""
        if not len(middle):
            return np.zeros(0)
        in_order = np.sort(self._healthy, axis=1)  # NaN goes to the end
        high = in_order[np.arange(len(middle)), (count * 9) // 10 - (count > 0) * (count % 10 == 0)]
        excess = np.nan_to_num(high) / np.where(middle > 0, middle, 1.0) - 1
        tail: Column = np.where(middle > 0, np.maximum(excess, 0.0) / TENTH_TO_SIGMA, 0.0)
        return tail

    def _remember(self, values: Column) -> None:
        """Learn from the values of a window that lies some windows back."""
        calm = self._sum[: len(values)] < SUSPECT
        rows = np.flatnonzero(calm & ~np.isnan(values))
        self._healthy[rows, self._next[rows] % HISTORY] = values[rows]
        self._next[rows] += 1


def _medians(values: Column, count: Column) -> Column:
    """Return the median of each row, of which ``count`` values are no NaN; 0 without values."""
    if not len(values):
        return np.zeros(0)
    in_order = np.sort(values, axis=1)  # NaN goes to the end
    rows = np.arange(len(values))
    high = np.minimum(count // 2, values.shape[1] - 1)
    low = np.maximum(count - 1, 0) // 2
    medians = (in_order[rows, low] + in_order[rows, high]) / 2
    result: Column = np.where(count > 0, np.nan_to_num(medians), 0.0)
    return result
