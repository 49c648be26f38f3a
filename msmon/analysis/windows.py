"""The records of all ranks as windows that can be judged.

Each rank is read once more, sorted into its windows on disk, and summed up window by window. Only
the sums stay in memory, and the collectives that are matched between ranks.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from msmon.analysis.clock import RankClock
from msmon.analysis.plan import Plan
from msmon.analysis.records import OTHER, RECORD_DTYPE, RankRecords, Sort
from msmon.analysis.steps import JobSteps
from msmon.insight.job import (
    COLLECTIVE_DTYPE,
    TIMES_DTYPE,
    TRAFFIC_DTYPE,
    WORK_DTYPE,
    JobNames,
    JobWindow,
)
from msmon.records.batch import Column, join_columns
from msmon.records.collectives import is_point_to_point

LOST = "records of this time were lost"
SILENT = "no records or no steps of this time"


@dataclass
class _WindowParts:
    """What the ranks contribute to one window."""

    work: list[Column] = field(default_factory=list)
    traffic: list[Column] = field(default_factory=list)
    collectives: list[Column] = field(default_factory=list)
    times: list[Column] = field(default_factory=list)
    unseen: dict[int, str] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


class WindowMaker:
    """Makes the windows of a job from its ranks, one rank after the other. Used on one thread."""

    def __init__(self, plan: Plan, steps: JobSteps) -> None:
        self._plan = plan
        self._steps = steps
        self._names = JobNames()
        self._parts = [_WindowParts() for _ in range(plan.windows)]

    def add(self, records: RankRecords) -> None:
        """Add a rank. Raises OSError when the temporary file can't grow."""
        member = self._names.member(records.member)
        clock = RankClock(self._plan, self._steps.by_rank.get(records.rank))
        ids = self._ids(records)
        for number, rows in _by_window(records, clock, self._plan.windows):
            parts = self._parts[number]
            span = clock.span(number)
            if span is None or not len(rows):
                parts.unseen[records.rank] = SILENT
                continue
            parts.starts.append(span[0])
            parts.ends.append(span[1])
            parts.work.append(_work(rows, ids, member))
            parts.traffic.append(_traffic(rows, ids, member))
            parts.times.append(_times(rows, ids, member, clock.steps_in(number), span))
            if any(gap.start_ns < span[1] and span[0] < gap.end_ns for gap in records.gaps):
                parts.unseen[records.rank] = LOST
            else:
                parts.collectives.append(
                    _collectives(rows, ids, member, clock, number, self._plan.collective_steps)
                )

    def windows(self, missing: dict[int, str]) -> Iterator[JobWindow]:
        """Yield the windows in order; call after the last rank. Parts are given up as they go.

        ``missing``: rank → why nothing at all is known of it.
        """
        for number in range(len(self._parts)):
            parts, self._parts[number] = self._parts[number], _WindowParts()
            if not parts.times:
                continue
            numbers = self._plan.numbers
            first_step = int(numbers[self._plan.bounds[number]]) if len(numbers) else -1
            yield JobWindow(
                names=self._names,
                start_ns=int(np.median(parts.starts)),
                end_ns=int(np.median(parts.ends)),
                first_step=first_step,
                collective_steps=self._plan.collective_steps,
                work=join_columns([np.zeros(0, WORK_DTYPE), *parts.work]),
                traffic=join_columns([np.zeros(0, TRAFFIC_DTYPE), *parts.traffic]),
                collectives=join_columns([np.zeros(0, COLLECTIVE_DTYPE), *parts.collectives]),
                times=join_columns([np.zeros(0, TIMES_DTYPE), *parts.times]),
                unseen={**missing, **parts.unseen},
            )

    def _ids(self, records: RankRecords) -> _Ids:
        """Return what the labels of a rank are in the tables, with new names added to these."""
        names = self._names
        ids = np.full((3, len(records.labels)), _NONE, np.int64)
        for place, label in enumerate(records.labels):
            if label.sort is Sort.COMMUNICATION:
                ids[1, place] = names.group(label.group)
                ids[2, place] = names.operation(label.name)
            elif label.name != OTHER:
                ids[0, place] = names.operator(label.name, label.sort is Sort.HOST_CALL)
        return _Ids(
            ids[0],
            ids[1],
            ids[2],
            np.array([label.size_class for label in records.labels], np.int64),
            np.array([label.sort for label in records.labels], np.int64),
            np.array([is_point_to_point(label.name) for label in records.labels], bool),
        )


_NONE = -1
"""In place of an operator, group or operation that a label has not."""


@dataclass(frozen=True)
class _Ids:
    """What each label of a rank is in the tables of the job; arrays of shape (labels,)."""

    operator: Column
    group: Column
    operation: Column
    size_class: Column
    sort: Column
    point_to_point: Column


def _by_window(
    records: RankRecords, clock: RankClock, windows: int
) -> Iterator[tuple[int, Column]]:
    """Yield (window, its records) for all windows, sorted on disk by counting."""
    counts = np.zeros(windows + 1, np.int64)
    for chunk in records.chunks():
        counts += np.bincount(clock.windows_of(chunk) + 1, minlength=windows + 1)
    counts = counts[1:]  # the first are in no window
    begins = np.append(0, np.cumsum(counts))
    with tempfile.TemporaryFile(prefix="msmon-") as file:
        if begins[-1]:
            # Room is taken now: to write to a mapped file on a full disk would end the process.
            os.posix_fallocate(file.fileno(), 0, int(begins[-1]) * RECORD_DTYPE.itemsize)
            arranged = np.memmap(file, RECORD_DTYPE, "r+", shape=(int(begins[-1]),))
            filled = begins[:-1].copy()
            for chunk in records.chunks():
                _place(chunk, clock.windows_of(chunk), filled, arranged)
        for number in range(windows):
            if counts[number]:
                rows = arranged[begins[number] : begins[number + 1]]
                yield number, rows.take(np.argsort(rows["start_ns"], kind="stable"))
            else:
                yield number, np.zeros(0, RECORD_DTYPE)


def _place(chunk: Column, window: Column, filled: Column, arranged: Column) -> None:
    """Copy each record to where the records of its window go on."""
    inside = np.flatnonzero(window >= 0)
    order = inside[np.argsort(window[inside], kind="stable")]
    numbers, first, count = np.unique(window[order], return_index=True, return_counts=True)
    for number, at, size in zip(numbers.tolist(), first.tolist(), count.tolist()):
        to = int(filled[number])
        arranged[to : to + size] = chunk.take(order[at : at + size])
        filled[number] += size


def _work(rows: Column, ids: _Ids, member: int) -> Column:
    rows = rows[ids.operator[rows["label"]] != _NONE]
    operator = ids.operator[rows["label"]]
    lasted = rows["end_ns"] - rows["start_ns"]
    order = np.lexsort((lasted, operator))
    operator, lasted = operator[order], lasted[order]
    found, first, count = np.unique(operator, return_index=True, return_counts=True)
    work = np.zeros(len(found), WORK_DTYPE)
    work["member"], work["operator"], work["count"] = member, found, count
    if len(found):
        work["total_ns"] = np.add.reduceat(lasted, first)
        low, high = lasted[first + (count - 1) // 2], lasted[first + count // 2]
        work["median_ns"] = (low + high) / 2
        quartiles = lasted[first + 3 * count // 4] - lasted[first + count // 4]
        work["spread"] = quartiles / np.maximum(work["median_ns"], 1.0)
    return work


def _traffic(rows: Column, ids: _Ids, member: int) -> Column:
    rows = rows[ids.sort[rows["label"]] == Sort.COMMUNICATION]
    key = np.stack([ids.group[rows["label"]], ids.operation[rows["label"]]], axis=1)
    found, place, count = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    traffic = np.zeros(len(found), TRAFFIC_DTYPE)
    if len(found):
        traffic["member"], traffic["count"] = member, count
        traffic["group"], traffic["operation"] = found[:, 0], found[:, 1]
        lasted = (rows["end_ns"] - rows["start_ns"]).astype(np.float64)
        traffic["total_ns"] = np.bincount(place.reshape(-1), lasted)
    return traffic


def _collectives(
    rows: Column, ids: _Ids, member: int, clock: RankClock, number: int, steps: int
) -> Column:
    """Return the collectives of the first steps of a window, numbered within step and group."""
    wanted = (ids.sort == Sort.COMMUNICATION) & ~ids.point_to_point
    rows = rows[wanted[rows["label"]]]
    step = clock.numbers_of(rows, number, steps)
    rows, step = rows[step >= 0], step[step >= 0]
    table = np.zeros(len(rows), COLLECTIVE_DTYPE)
    table["member"], table["step"] = member, step
    for name in ("group", "operation", "size_class"):
        table[name] = getattr(ids, name)[rows["label"]]
    table["start_ns"], table["end_ns"] = rows["start_ns"], rows["end_ns"]
    order = np.lexsort((rows["start_ns"], table["operation"], table["group"], table["step"]))
    table = table.take(order)
    key = table[["step", "group", "operation"]]
    begins = np.flatnonzero(np.append(True, key[1:] != key[:-1])) if len(key) else np.zeros(0, int)
    sizes = np.diff(np.append(begins, len(key)))
    table["place"] = np.arange(len(key)) - np.repeat(begins, sizes)
    return table


def _times(
    rows: Column, ids: _Ids, member: int, steps: tuple[int, int], span: tuple[int, int]
) -> Column:
    """Return how the device spent the window; ``rows`` are in the order of their starts."""
    sort = ids.sort[rows["label"]]
    kernels, traffic = rows[sort == Sort.KERNEL], rows[sort == Sort.COMMUNICATION]
    on_device = rows[sort != Sort.HOST_CALL]
    busy, together = _union_ns(kernels, span), _union_ns(on_device, span)
    times = np.zeros(1, TIMES_DTYPE)
    times["member"] = member
    times["steps"], times["total_ns"] = steps
    times["busy_ns"], times["exposed_ns"] = busy, together - busy
    if len(traffic) or len(kernels):
        times["idle_ns"] = max(0, span[1] - span[0] - together)
    return times


def _union_ns(rows: Column, span: tuple[int, int]) -> int:
    """Return how long at least one of the records ran, within the span; sorted by start."""
    if not len(rows):
        return 0
    end = np.minimum(np.maximum.accumulate(rows["end_ns"]), span[1])
    begin = np.minimum(np.maximum(rows["start_ns"], span[0]), span[1])
    begin[1:] = np.maximum(begin[1:], end[:-1])
    return int(np.maximum(end - begin, 0).sum())
