"""Operators of one kind on one device, accumulated over a window.

All sums are exact: float64 weights are used only where every partial sum stays
below 2**53, and a total that would exceed 64 bits stays at the largest value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from msmon.durations import Label
from msmon.records import Column
from msmon.windows import bucket_of

CHUNK_RECORDS = 16_384
"""Records handled at once, so that the temporaries stay in the processor's cache."""

MAX_U64 = np.uint64(0xFFFFFFFFFFFFFFFF)

_EXACT_FLOAT = 1 << 53
_DENSE_LABELS = 1024
_INITIAL_ROWS = 16


class OperatorGroup:
    """Rows of one (kind, device). A row is added when a label is first counted."""

    def __init__(self) -> None:
        self._row_of_label: dict[Label, int] = {}
        self._count = np.zeros(_INITIAL_ROWS, np.uint64)
        self._total_ns = np.zeros(_INITIAL_ROWS, np.uint64)
        self._min_ns = np.full(_INITIAL_ROWS, MAX_U64)
        self._max_ns = np.zeros(_INITIAL_ROWS, np.uint64)
        self._histogram = np.zeros((_INITIAL_ROWS, 0), np.uint64)
        self._first_bucket = 0

    @property
    def labels(self) -> tuple[Label, ...]:
        """The label of each row."""
        return tuple(self._row_of_label)

    def columns(self) -> tuple[Column, Column, Column, Column]:
        """Return count, total_ns, min_ns and max_ns (uint64) of each row."""
        rows = len(self._row_of_label)
        return self._count[:rows], self._total_ns[:rows], self._min_ns[:rows], self._max_ns[:rows]

    def buckets(self) -> tuple[Column, Column, Column]:
        """Return (row, bucket, count) of each non-empty bucket, by row and bucket."""
        filled = self._histogram[: len(self._row_of_label)]
        rows, places = np.nonzero(filled)
        return rows, places + self._first_bucket, filled[rows, places]

    def add(
        self,
        durations_ns: Column,
        label_ids: Column,
        labels: Sequence[Label],
        admit: Callable[[Label], Label],
    ) -> None:
        """Count durations (uint64, shape (n,), n > 0) under their labels.

        ``label_ids`` (int64, shape (n,)) index ``labels``; ``admit`` turns a label
        into the one it is counted under.
        """
        used = np.flatnonzero(np.bincount(label_ids, minlength=len(labels)))
        rows = np.array([self._row(admit(labels[number])) for number in used.tolist()], np.int64)
        if len(labels) > _DENSE_LABELS or len(set(rows.tolist())) < len(rows):
            row_of_label = np.zeros(len(labels), np.int64)
            row_of_label[used] = rows
            label_ids = row_of_label[label_ids]
            used = rows = np.unique(rows)
            width = int(rows[-1]) + 1
        else:
            width = len(labels)
        self._add_totals(durations_ns, label_ids, used, rows)
        self._add_extremes(durations_ns, label_ids, used, rows, width)
        self._add_histogram(durations_ns, label_ids, used, rows, width)

    def _row(self, label: Label) -> int:
        row = self._row_of_label.get(label)
        if row is None:
            row = self._row_of_label[label] = len(self._row_of_label)
            if row == len(self._count):
                self._grow_rows()
        return row

    def _grow_rows(self) -> None:
        added = len(self._count)
        self._count = np.concatenate([self._count, np.zeros(added, np.uint64)])
        self._total_ns = np.concatenate([self._total_ns, np.zeros(added, np.uint64)])
        self._min_ns = np.concatenate([self._min_ns, np.full(added, MAX_U64)])
        self._max_ns = np.concatenate([self._max_ns, np.zeros(added, np.uint64)])
        self._histogram = np.concatenate([self._histogram, np.zeros_like(self._histogram)])

    def _add_totals(
        self, durations_ns: Column, label_ids: Column, used: Column, rows: Column
    ) -> None:
        sums = exact_sums(durations_ns, label_ids)[used]
        self._total_ns[rows] = saturating_add(self._total_ns[rows], sums)

    def _add_extremes(
        self, durations_ns: Column, label_ids: Column, used: Column, rows: Column, width: int
    ) -> None:
        """Lower and raise the extremes; almost no record does, so few are looked at twice."""
        low = np.full(width, MAX_U64)
        high = np.zeros(width, np.uint64)
        low[used] = self._min_ns[rows]
        high[used] = self._max_ns[rows]
        start, size = 0, CHUNK_RECORDS // 32
        while start < len(durations_ns):
            values = durations_ns[start : start + size]
            ids = label_ids[start : start + size]
            beyond = values < low.take(ids)
            if beyond.any():
                np.minimum.at(low, ids[beyond], values[beyond])
            beyond = values > high.take(ids)
            if beyond.any():
                np.maximum.at(high, ids[beyond], values[beyond])
            start, size = start + size, CHUNK_RECORDS
        self._min_ns[rows] = low[used]
        self._max_ns[rows] = high[used]

    def _add_histogram(
        self, durations_ns: Column, label_ids: Column, used: Column, rows: Column, width: int
    ) -> None:
        extremes = np.array([durations_ns.min(), durations_ns.max()])
        first, last = bucket_of(extremes).tolist()
        span = last - first + 1
        cells = np.zeros(width * span, np.int64)
        offsets = np.arange(width) * span - first
        for start in range(0, len(durations_ns), CHUNK_RECORDS):
            values = durations_ns[start : start + CHUNK_RECORDS]
            places = offsets.take(label_ids[start : start + CHUNK_RECORDS])
            places += bucket_of(values)
            cells += np.bincount(places, minlength=len(cells))
        counts = cells.reshape(width, span)[used]
        self._cover(first, last)
        columns = slice(first - self._first_bucket, last - self._first_bucket + 1)
        self._histogram[rows, columns] += counts.astype(np.uint64)
        self._count[rows] += counts.sum(axis=1).astype(np.uint64)

    def _cover(self, first: int, last: int) -> None:
        """Widen the histogram so that it has the buckets ``first`` to ``last``."""
        rows, width = self._histogram.shape
        if not width:
            self._first_bucket = first
        before = max(0, self._first_bucket - first)
        after = max(0, last + 1 - self._first_bucket - width)
        if before or after:
            blocks = [np.zeros((rows, before), np.uint64), self._histogram]
            self._histogram = np.hstack([*blocks, np.zeros((rows, after), np.uint64)])
            self._first_bucket -= before


def exact_sums(values: Column, ids: Column) -> Column:
    """Return the sum of ``values`` (uint64) per id as uint64, at most 2**64 - 1."""
    if int(values.max()) * len(values) < _EXACT_FLOAT:
        sums: Column = np.bincount(ids, weights=values).astype(np.uint64)
        return sums
    low = np.bincount(ids, weights=values & np.uint64(0xFFFFFFFF)).astype(np.uint64)
    high = np.bincount(ids, weights=values >> np.uint64(32)).astype(np.uint64)
    carried = high + (low >> np.uint64(32))
    sums = (carried << np.uint64(32)) | (low & np.uint64(0xFFFFFFFF))
    sums[carried > np.uint64(0xFFFFFFFF)] = MAX_U64
    return sums


def saturating_add(left: Column, right: Column) -> Column:
    """Add uint64 columns; what would wrap around becomes 2**64 - 1."""
    total: Column = left + right
    total[total < left] = MAX_U64
    return total
