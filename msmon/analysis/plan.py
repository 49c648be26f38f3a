"""Which steps make up each window, for all ranks alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from msmon.analysis.records import RankRecords, Sort
from msmon.analysis.steps import JobSteps
from msmon.insight.own_work import FEWEST_CALLS
from msmon.records.batch import Column

WINDOW_NS = 10_000_000_000
STEPS_PER_WINDOW = 3
FEWEST_WINDOWS = 8
"""A short recording gets shorter windows, since a finding must show in several of them."""

MOST_WINDOWS = 360
"""Longer recordings get longer windows, so that memory stays bounded."""

COLLECTIVES_IN_MEMORY = 8_000_000
"""Collectives of all ranks and windows that are matched; of longer windows only the first steps
take part. Some 40 bytes each."""


@dataclass(frozen=True)
class Plan:
    """The windows of a job. ``numbers`` are step numbers in order, shape (n,); window ``w`` holds
    ``numbers[bounds[w]:bounds[w + 1]]``, and the collectives of its first ``collective_steps``.

    Without steps, ``numbers`` is empty and ``bounds`` are times in ns.
    """

    numbers: Column
    bounds: Column
    collective_steps: int

    @property
    def windows(self) -> int:
        """How many windows there are."""
        return max(0, len(self.bounds) - 1)


def plan_of(ranks: Sequence[RankRecords], steps: JobSteps) -> Plan:
    """Choose the windows: 10 s, at least three steps, and enough calls to compare."""
    if not steps.by_rank:
        return _by_time(ranks)
    all_numbers = np.concatenate([one.numbers for one in steps.by_rank.values()])
    numbers, seen = np.unique(all_numbers, return_counts=True)
    numbers = numbers[seen * 2 >= len(steps.by_rank)]  # a late rank must not cut the others short
    durations = [np.median(one.end_ns - one.start_ns) for one in steps.by_rank.values()]
    step_ns = max(1.0, float(np.median(durations)))
    per_window = max(
        STEPS_PER_WINDOW,
        min(math.ceil(WINDOW_NS / step_ns), len(numbers) // FEWEST_WINDOWS),
        _steps_for_calls(ranks, len(numbers)),
        math.ceil(len(numbers) / MOST_WINDOWS),
    )
    bounds = np.arange(0, len(numbers) + 1, per_window)
    if len(bounds) < 2:
        bounds = np.array([0, len(numbers)])
    elif len(numbers) - bounds[-1] >= STEPS_PER_WINDOW:
        bounds = np.append(bounds, len(numbers))
    per_step = max(1.0, _collectives(ranks) / max(1, len(numbers)))
    room = COLLECTIVES_IN_MEMORY / (per_step * max(1, len(bounds) - 1))
    return Plan(numbers, bounds, int(min(max(1, room), per_window)))


def _by_time(ranks: Sequence[RankRecords]) -> Plan:
    first = min((one.first_ns for one in ranks if one.first_ns), default=0)
    last = max((one.last_ns for one in ranks), default=0)
    length = max(WINDOW_NS, math.ceil((last - first) / MOST_WINDOWS))
    bounds = np.arange(first, max(last, first + 1) + length, length)
    return Plan(np.zeros(0, np.int64), bounds, 0)


def _steps_for_calls(ranks: Sequence[RankRecords], steps: int) -> int:
    """Return in how many steps the busiest kernel of a rank is called often enough."""
    busiest = [
        max(
            (count for label, count in zip(one.labels, one.counts) if label.sort is Sort.KERNEL),
            default=0,
        )
        for one in ranks
    ]
    per_step = min((count for count in busiest if count), default=0) / max(1, steps)
    return math.ceil(FEWEST_CALLS / per_step) if per_step else 1


def _collectives(ranks: Sequence[RankRecords]) -> int:
    return sum(
        count
        for one in ranks
        for label, count in zip(one.labels, one.counts)
        if label.sort is Sort.COMMUNICATION
    )
