"""Several windows into one, as if all their records had been in it.

Used where ranks or intervals are looked at together. Nothing is lost: histograms are added
bucket by bucket, so a quantile of the result is as exact as one of a single window. In the same
way the operators of a window that is too large are merged into fewer.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

import numpy as np

from msmon.records.batch import Column, encode_texts, join_columns
from msmon.records.statistics.operators import exact_sums
from msmon.records.windows import (
    MAX_ROWS,
    MAX_WINDOW_BYTES,
    OTHER_NAME,
    Window,
    bucket_rows,
)


def merge(windows: Iterable[Window]) -> Window:
    """Merge windows (at least one) of any intervals, sessions or ranks into one.

    Counts, totals, extremes and histograms are as if all records had been in one
    window. Devices and single collectives are left out, as they mean something only where they come
    from. Its index and step are the largest, its interval spans all of theirs;
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
        steps=sum(window.steps for window in merged),
        step_total_ns=sum(window.step_total_ns for window in merged),
        step_min_ns=min((window.step_min_ns for window in merged if window.steps), default=0),
        step_max_ns=max(window.step_max_ns for window in merged),
    )


def fitted(window: Window, most_bytes: int = MAX_WINDOW_BYTES, most_rows: int = MAX_ROWS) -> Window:
    """Return a window that is no larger than a daemon takes.

    Where it is, the operators with the fewest records are merged into ``other``, one per kind and
    device, until it fits. All counts and totals stay as they are.
    """
    fitting, kept = window, len(window.operators)
    while kept and not _fits(fitting, most_bytes, most_rows):
        kept //= 2
        fitting = _with_operators(window, kept)
    return fitting


def _fits(window: Window, most_bytes: int, most_rows: int) -> bool:
    size_bytes = window.operators.nbytes + window.buckets.nbytes
    if len(window.operators) > most_rows or size_bytes > most_bytes:
        return False
    return size_bytes + len(encode_texts(window.names)) <= most_bytes


def _with_operators(window: Window, kept: int) -> Window:
    """Return the window with the ``kept`` operators that have most records; the rest is one."""
    order = np.argsort(window.operators["count"].astype(np.int64), kind="stable")
    rarest = order[: len(order) - kept]
    operators = window.operators.copy()
    operators["name"][rarest] = len(window.names)
    operators["domain"][rarest] = 0
    overflow = window.overflow_names + len(rarest)
    operators["size_class"][rarest] = 0
    names = (*window.names, OTHER_NAME)
    merged = merge(
        [dataclasses.replace(window, operators=operators, names=names, overflow_names=overflow)]
    )
    return _with_used_names(merged)


def _with_used_names(window: Window) -> Window:
    used = np.zeros(len(window.names), dtype=bool)
    used[0] = True
    for field in ("name", "domain"):
        used[window.operators[field]] = True
    number = np.cumsum(used) - 1
    operators = window.operators.copy()
    for field in ("name", "domain"):
        operators[field] = number[window.operators[field]]
    names = tuple(window.names[place] for place in np.flatnonzero(used).tolist())
    return dataclasses.replace(window, operators=operators, names=names)


def _with_texts(window: Window, text_ids: dict[str, int]) -> Column:
    operators = window.operators.copy()
    ids = np.array([text_ids.setdefault(name, len(text_ids)) for name in window.names])
    operators["name"] = ids[window.operators["name"]]
    operators["domain"] = ids[window.operators["domain"]]
    return operators


def _merge_operators(operators: Column) -> tuple[Column, Column]:
    """Return (merged rows, the merged row of each given row)."""
    keys = ("kind", "device_id", "name", "domain", "size_class")
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
