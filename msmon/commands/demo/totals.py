"""The operators of each rank since the start, from the windows that its daemon has.

All windows of a rank are merged into one, and that one is asked for the 95th percentile. An average
of the percentiles of many windows would be another number: two windows with 95 % at 1 ms and at
9 ms have none at 5 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msmon.records.merging import merge
from msmon.records.windows import Window, operator_rows, quantile_ns


@dataclass(frozen=True)
class OperatorTotal:
    """One operator on one rank over all windows so far."""

    kind: str
    name: str
    count: int
    total_ns: int
    p95_ns: float

    @property
    def mean_ns(self) -> float:
        """Mean duration."""
        return self.total_ns / self.count if self.count else 0.0


Totals = Mapping[int, list[OperatorTotal]]
"""Rank to its operators."""


class MergedWindows:
    """All windows of each rank as one. Belongs to one thread."""

    def __init__(self) -> None:
        self._windows: dict[int, Window] = {}

    def add(self, rank: int, window: Window) -> None:
        """Take a window of a rank."""
        known = self._windows.get(rank)
        self._windows[rank] = merge([known, window] if known else [window])

    def totals(self) -> Totals:
        """Return the operators of each rank."""
        return {rank: _totals(window) for rank, window in self._windows.items()}


def _totals(window: Window) -> list[OperatorTotal]:
    return [
        OperatorTotal(
            row.kind.name, row.name, row.count, row.total_ns, quantile_ns(window, index, 0.95)
        )
        for index, row in enumerate(operator_rows(window))
    ]
