"""Several windows into one, as if all their records had been in it.

Used where ranks or intervals are looked at together. Nothing is lost: histograms are added
bucket by bucket, so a quantile of the result is as exact as one of a single window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from msmon.records.batch import Column, join_columns
from msmon.records.operators import exact_sums
from msmon.records.windows import Window, bucket_rows


def merge(windows: Iterable[Window]) -> Window:
    """Merge windows (at least one) of any intervals, sessions or ranks into one.

    Counts, totals, extremes and histograms are as if all records had been in one
    window. Its index and step are the largest, its interval spans all of theirs;
    overflow_names is the largest too, since the same names may have overflowed.
    """
    merged = list(windows)
    text_ids: dict[str, int] = {"": 0}
    parts = [_with_texts(window, text_ids) for window in merged]
    operators, operator_ids = _merge_operators(join_columns(parts))
    starts = np.cumsum([0, *(len(part) for part in parts)])[:-1].tolist()
    joined = join_columns([window.buckets for window in merged])
    shifted = np.concatenate(
        [window.buckets["operator"] + np.int64(at) for window, at in zip(merged, starts)]
    )
    return Window(
        index=max(window.index for window in merged),
        start_ns=min(window.start_ns for window in merged),
        end_ns=max(window.end_ns for window in merged),
        operators=operators,
        buckets=_merge_buckets(operator_ids[shifted], joined),
        names=tuple(text_ids),
        step=max(window.step for window in merged),
        received=_sum_counts(window.received for window in merged),
        kept=_sum_counts(window.kept for window in merged),
        untimed=_sum_counts(window.untimed for window in merged),
        overflow_names=max(window.overflow_names for window in merged),
    )


def _with_texts(window: Window, text_ids: dict[str, int]) -> Column:
    operators = window.operators.copy()
    ids = np.array([text_ids.setdefault(name, len(text_ids)) for name in window.names])
    operators["name"] = ids[window.operators["name"]]
    operators["domain"] = ids[window.operators["domain"]]
    return operators


def _merge_operators(operators: Column) -> tuple[Column, Column]:
    """Return (merged rows, the merged row of each given row)."""
    keys = ("kind", "device_id", "name", "domain")
    order = np.lexsort([operators[key] for key in reversed(keys)])
    rows = operators.take(order)
    is_first = np.ones(len(rows), dtype=bool)
    is_first[1:] = np.any([rows[key][1:] != rows[key][:-1] for key in keys], axis=0)
    merged = rows.take(np.flatnonzero(is_first))
    places = np.cumsum(is_first) - 1
    for field in ("count", "total_ns"):
        merged[field] = exact_sums(rows[field], places, len(merged))
    if len(rows):
        firsts = np.flatnonzero(is_first)
        merged["min_ns"] = np.minimum.reduceat(rows["min_ns"], firsts)
        merged["max_ns"] = np.maximum.reduceat(rows["max_ns"], firsts)
    back = np.empty(len(rows), np.int64)
    back[order] = places
    return merged, back


def _merge_buckets(operator_ids: Column, buckets: Column) -> Column:
    keys = (operator_ids.astype(np.uint64) << np.uint64(16)) | buckets["bucket"]
    distinct, places = np.unique(keys, return_inverse=True)
    counts = np.zeros(len(distinct), np.uint64)
    np.add.at(counts, places, buckets["count"])
    return bucket_rows(distinct >> np.uint64(16), distinct & np.uint64(0xFFFF), counts)


def _sum_counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)
