"""How long an operator typically takes, from the histogram of a window.

A bucket is an eighth of an octave wide, so its middle may be 6 % off. Two ranks whose durations
lie on either side of an edge would seem to differ by 12 %. So the buckets only choose the records
that are typical, those within half an octave of the median; their mean comes from the exact total,
less what the others took. Where the others took much of the total, the median itself is used.
"""

from __future__ import annotations

import numpy as np

from msmon.records.batch import Column
from msmon.records.windows import SUB_BUCKETS_PER_OCTAVE, ZERO_BUCKET, Window

NEAR = SUB_BUCKETS_PER_OCTAVE // 2
"""Buckets on either side of the median's that are typical."""

MOST_UNTYPICAL = 0.3
"""Share of the total up to which the records that are not typical may be taken off. They are known
by the middle of their buckets only."""

_BUCKET_SHIFT = 52 - 3


def typical_ns(window: Window) -> tuple[Column, Column]:
    """Return (typical duration in ns, spread) of each operator of a window.

    Both are float64 of shape (operators,); the spread is (p75 - p25) / p50. Both are 0 for an
    operator without a histogram.
    """
    operators, buckets = window.operators, window.buckets
    typical = np.zeros(len(operators))
    spread = np.zeros(len(operators))
    if not len(buckets):
        return typical, spread
    order = np.lexsort((buckets["bucket"], buckets["operator"]))
    owner = buckets["operator"][order].astype(np.int64)
    bucket = buckets["bucket"][order].astype(np.int64)
    count = buckets["count"][order].astype(np.float64)
    low, high = _edges_ns(bucket)
    low = np.maximum(low, operators["min_ns"][owner].astype(np.float64))
    high = np.maximum(low, np.minimum(high, operators["max_ns"][owner].astype(np.float64)))
    known, first = np.unique(owner, return_index=True)
    until = np.cumsum(count)
    before = (until - count)[first]
    total = np.add.reduceat(count, first)

    def quantile(share: float) -> tuple[Column, Column]:
        target = before + share * total
        place = np.minimum(np.searchsorted(until, target), np.append(first[1:], len(owner)) - 1)
        part = np.clip((target - (until - count)[place]) / count[place], 0.0, 1.0)
        return low[place] + (high - low)[place] * part, place

    median, middle = quantile(0.5)
    row = np.repeat(np.arange(len(known)), np.diff(np.append(first, len(owner))))
    is_near = np.abs(bucket - bucket[middle][row]) <= NEAR
    others_ns = np.bincount(row, np.where(is_near, 0.0, count * (low + high) / 2))
    near = np.bincount(row, np.where(is_near, count, 0.0))
    total_ns = operators["total_ns"][known].astype(np.float64)
    mean = (total_ns - others_ns) / near
    lowest = np.minimum.reduceat(np.where(is_near, low, np.inf), first)
    highest = np.maximum.reduceat(np.where(is_near, high, -np.inf), first)
    mean = np.clip(mean, lowest, highest)
    typical[known] = np.where(others_ns <= MOST_UNTYPICAL * total_ns, mean, median)
    quarter = quantile(0.75)[0] - quantile(0.25)[0]
    spread[known] = quarter / np.maximum(median, 1.0)
    return typical, spread


def _edges_ns(bucket: Column) -> tuple[Column, Column]:
    """Return the lower and the upper end of buckets in ns, as float64."""
    low: Column = (bucket << _BUCKET_SHIFT).view(np.float64)
    high: Column = ((bucket + 1) << _BUCKET_SHIFT).view(np.float64)
    return np.where(bucket <= ZERO_BUCKET, 0.0, low), high
