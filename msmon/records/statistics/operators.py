"""Operators of one kind on one device, accumulated over a window.

All sums are exact: float64 weights are used only where every partial sum stays
below 2**53, and a total that would exceed 64 bits stays at the largest value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from msmon.records.batch import Column
from msmon.records.durations import Label
from msmon.records.windows import bucket_of, buckets_of_floats

CHUNK_RECORDS = 16_384
"""Records handled at once, so that the temporaries stay in the processor's cache."""

MAX_U64 = np.uint64(0xFFFFFFFFFFFFFFFF)

_LOW_HALF = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_EXACT_FLOAT = 1 << 53
_DENSE_LABELS = 1024
_INITIAL_ROWS = 16


class _Tally(NamedTuple):
    """Sums of one batch per id."""

    histogram: Column
    """Counts, shape (ids, buckets from ``first_bucket`` on)."""
    first_bucket: int
    counts: Column
    totals_ns: Column


class OperatorGroup:
    """Rows of one (kind, device). A row is added when a label is first counted."""

    def __init__(self) -> None:
        self._row_of_label: dict[Label, int] = {}
        self._count = np.zeros(_INITIAL_ROWS, np.int64)
        self._total_ns = np.zeros(_INITIAL_ROWS, np.uint64)
        self._min_ns = np.full(_INITIAL_ROWS, MAX_U64)
        self._max_ns = np.zeros(_INITIAL_ROWS, np.uint64)
        self._histogram = np.zeros((_INITIAL_ROWS, 0), np.int64)
        self._first_bucket = 0

    @property
    def labels(self) -> tuple[Label, ...]:
        """The label of each row."""
        return tuple(self._row_of_label)

    def columns(self) -> tuple[Column, Column, Column, Column]:
        """Return count (int64), total_ns, min_ns and max_ns (uint64) of each row."""
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
        width = len(labels)
        row_of_id: Column | None = None
        if width > _DENSE_LABELS:
            used = np.flatnonzero(np.bincount(label_ids, minlength=width))
            row_of_label = np.zeros(width, np.int64)
            row_of_label[used] = self._rows(used, labels, admit)
            label_ids = row_of_label[label_ids]
            width = len(self._row_of_label)
            row_of_id = np.arange(width)
        tally = _tally(durations_ns, label_ids, width)
        used = np.flatnonzero(tally.counts)
        rows = self._rows(used, labels, admit) if row_of_id is None else row_of_id[used]
        self._add_tally(tally, used, rows)
        low = np.full(width, MAX_U64)
        high = np.zeros(width, np.uint64)
        low[used] = self._min_ns[rows]
        high[used] = self._max_ns[rows]
        _extend(low, high, durations_ns, label_ids)
        np.minimum.at(self._min_ns, rows, low[used])
        np.maximum.at(self._max_ns, rows, high[used])

    def _rows(
        self, used: Column, labels: Sequence[Label], admit: Callable[[Label], Label]
    ) -> Column:
        """Return the rows of the labels with these ids; several labels may share a row."""
        known = self._row_of_label
        rows = [known.get(labels[number], -1) for number in used.tolist()]
        for place, row in enumerate(rows):
            if row < 0:
                rows[place] = self._row(admit(labels[used[place]]))
        return np.array(rows, np.int64)

    def _row(self, label: Label) -> int:
        row = self._row_of_label.get(label)
        if row is None:
            row = self._row_of_label[label] = len(self._row_of_label)
            if row == len(self._count):
                self._grow_rows()
        return row

    def _grow_rows(self) -> None:
        added = len(self._count)
        self._count = np.concatenate([self._count, np.zeros(added, np.int64)])
        self._total_ns = np.concatenate([self._total_ns, np.zeros(added, np.uint64)])
        self._min_ns = np.concatenate([self._min_ns, np.full(added, MAX_U64)])
        self._max_ns = np.concatenate([self._max_ns, np.zeros(added, np.uint64)])
        self._histogram = np.concatenate([self._histogram, np.zeros_like(self._histogram)])

    def _add_tally(self, tally: _Tally, used: Column, rows: Column) -> None:
        histogram = tally.histogram[used]
        first = tally.first_bucket
        last = first + histogram.shape[1] - 1
        self._cover(first, last)
        columns = slice(first - self._first_bucket, last - self._first_bucket + 1)
        if len(np.unique(rows)) == len(rows):
            self._histogram[rows, columns] += histogram
        else:
            np.add.at(self._histogram[:, columns], rows, histogram)
        np.add.at(self._count, rows, tally.counts[used])
        added = exact_sums(tally.totals_ns[used], rows, len(self._total_ns))
        self._total_ns = saturating_add(self._total_ns, added)

    def _cover(self, first: int, last: int) -> None:
        """Widen the histogram so that it has the buckets ``first`` to ``last``."""
        rows, width = self._histogram.shape
        if not width:
            self._first_bucket = first
        before = max(0, self._first_bucket - first)
        after = max(0, last + 1 - self._first_bucket - width)
        if before or after:
            blocks = [np.zeros((rows, before), np.int64), self._histogram]
            self._histogram = np.hstack([*blocks, np.zeros((rows, after), np.int64)])
            self._first_bucket -= before


def _tally(durations_ns: Column, ids: Column, width: int) -> _Tally:
    longest = int(durations_ns.max())
    first, last = bucket_of(np.array([durations_ns.min(), longest], np.uint64)).tolist()
    span = last - first + 1
    offsets = np.arange(width) * span - first
    cells = np.zeros(width * span, np.int64)
    totals = np.zeros(width, np.float64)
    exact = longest * len(durations_ns) < _EXACT_FLOAT
    size = max(CHUNK_RECORDS, 2 * len(cells))
    for start in range(0, len(durations_ns), size):
        chunk_ids = ids[start : start + size]
        weights = durations_ns[start : start + size].astype(np.float64)
        places = offsets.take(chunk_ids)
        places += buckets_of_floats(weights)
        cells += np.bincount(places, minlength=len(cells))
        if exact:
            totals += np.bincount(chunk_ids, weights, minlength=width)
    histogram = cells.reshape(width, span)
    return _Tally(
        histogram,
        first,
        histogram.sum(axis=1),
        totals.astype(np.uint64) if exact else exact_sums(durations_ns, ids, width),
    )


def _extend(low: Column, high: Column, values: Column, ids: Column) -> None:
    """Lower ``low`` and raise ``high`` per id, in place.

    Almost no record does either, so all are compared and only those few are handled.
    """
    start, size = 0, CHUNK_RECORDS // 32
    while start < len(values):
        chunk, chunk_ids = values[start : start + size], ids[start : start + size]
        below = np.flatnonzero(chunk < low.take(chunk_ids))
        if len(below):
            np.minimum.at(low, chunk_ids[below], chunk[below])
        above = np.flatnonzero(chunk > high.take(chunk_ids))
        if len(above):
            np.maximum.at(high, chunk_ids[above], chunk[above])
        start, size = start + size, CHUNK_RECORDS


def exact_sums(values: Column, ids: Column, width: int) -> Column:
    """Return the sums of ``values`` (uint64) per id, shape (width,), uint64, at most 2**64 - 1.

    Halves of 32 bits are summed as float64, which is exact below 2**21 values.
    """
    low = np.bincount(ids, values & _LOW_HALF, minlength=width).astype(np.uint64)
    high = np.bincount(ids, values >> _HALF, minlength=width).astype(np.uint64)
    high += low >> _HALF
    sums: Column = (high << _HALF) | (low & _LOW_HALF)
    sums[high > _LOW_HALF] = MAX_U64
    return sums


def saturating_add(left: Column, right: Column) -> Column:
    """Add uint64 columns; what would wrap around becomes 2**64 - 1."""
    total: Column = left + right
    total[total < left] = MAX_U64
    return total
