"""The windows of one rank as rows of the tables that are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from msmon.insight.job import TIMES_DTYPE, TRAFFIC_DTYPE, WORK_DTYPE, JobNames
from msmon.live.typical import typical_ns
from msmon.records.batch import Column
from msmon.records.collectives import is_point_to_point
from msmon.records.kinds import ActivityKind
from msmon.records.layout import API_KINDS
from msmon.records.merging import merge
from msmon.records.windows import OTHER_NAME, Window

CALL_DTYPE = np.dtype(
    [
        ("group", "<u4"),
        ("operation", "<u4"),
        ("size_class", "<u1"),
        ("step", "<i8"),
        ("number", "<i8"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
    ]
)
"""One row per collective of a rank. The step is the moment that stands for it; ``number`` counts
those of the group since the session began; the times are wall clock."""

SIZE_CLASSES = 64
"""Size classes are below this."""


@dataclass(frozen=True)
class RankRows:
    """What one rank did in a slot. ``calls`` has ``CALL_DTYPE``, the others the dtypes of
    :mod:`msmon.insight.job`."""

    work: Column
    traffic: Column
    times: Column
    calls: Column
    last_step: int = -1


def rank_rows(windows: Sequence[Window], names: JobNames, member: int) -> RankRows:
    """Return the rows of a member from its windows of one session, at least one, in their order."""
    merged = windows[0] if len(windows) == 1 else merge(windows)
    return RankRows(
        _work(merged, names, member),
        _traffic(merged, names, member),
        _times(windows, member),
        np.concatenate([_calls(window, names) for window in windows]),
        max(window.step for window in windows),
    )


def _work(window: Window, names: JobNames, member: int) -> Column:
    operators = window.operators
    on_device = operators["kind"] == int(ActivityKind.Kernel)
    on_host = np.isin(operators["kind"], [int(kind) for kind in API_KINDS])
    median, spread = typical_ns(window)
    chosen = np.flatnonzero(on_device | on_host)
    chosen = chosen[[window.names[name] != OTHER_NAME for name in operators["name"][chosen]]]
    place = np.array(
        [
            names.operator(window.names[name], host)
            for name, host in zip(operators["name"][chosen].tolist(), on_host[chosen].tolist())
        ],
        np.int64,
    )
    return _summed(place, operators[chosen], median[chosen], spread[chosen], member)


def _summed(
    place: Column, operators: Column, median: Column, spread: Column, member: int
) -> Column:
    """Return one row per operator: a rank with several devices has it once for each."""
    found, row = np.unique(place, return_inverse=True)
    work = np.zeros(len(found), WORK_DTYPE)
    if len(found):
        count = operators["count"].astype(np.float64)
        in_all = np.bincount(row, count)
        work["member"], work["operator"], work["count"] = member, found, in_all
        work["total_ns"] = np.bincount(row, operators["total_ns"].astype(np.float64))
        work["median_ns"] = np.bincount(row, count * median) / np.maximum(in_all, 1)
        work["spread"] = np.bincount(row, count * spread) / np.maximum(in_all, 1)
    return work


def _traffic(window: Window, names: JobNames, member: int) -> Column:
    operators = window.operators
    kind = int(ActivityKind.Communication)
    if not (operators["kind"] == kind).any():
        kind = int(ActivityKind.Hccl)
    rows = operators[operators["kind"] == kind]
    rows = rows[[window.names[name] != OTHER_NAME for name in rows["name"]]]
    group = [names.group(window.names[domain]) for domain in rows["domain"].tolist()]
    operation = [names.operation(window.names[name]) for name in rows["name"].tolist()]
    keys = np.stack([np.array(group, np.int64), np.array(operation, np.int64)], axis=1)
    found, place = np.unique(keys, axis=0, return_inverse=True)
    traffic = np.zeros(len(found), TRAFFIC_DTYPE)
    if len(found):
        place = place.reshape(-1)
        traffic["member"] = member
        traffic["group"], traffic["operation"] = found[:, 0], found[:, 1]
        traffic["count"] = np.bincount(place, rows["count"].astype(np.float64))
        traffic["total_ns"] = np.bincount(place, rows["total_ns"].astype(np.float64))
    return traffic


def _times(windows: Sequence[Window], member: int) -> Column:
    """Return the steps of the windows, and how the device spent them.

    Where the device was looked at for a part of the time only, that part stands for all of it.
    """
    times = np.zeros(1, TIMES_DTYPE)
    times["member"] = member
    times["steps"] = sum(window.steps for window in windows)
    total_ns = sum(window.step_total_ns for window in windows)
    if not total_ns:
        total_ns = sum(window.end_ns - window.start_ns for window in windows)
    times["total_ns"] = total_ns
    devices = np.concatenate([window.devices for window in windows])
    measured_ns = int(devices["measured_ns"].sum())
    if measured_ns:
        for name in ("busy_ns", "exposed_ns", "idle_ns"):
            times[name] = int(devices[name].sum()) / measured_ns * total_ns
    return times


def _calls(window: Window, names: JobNames) -> Column:
    """Return the collectives of which the window holds each one."""
    rows = window.collectives
    calls = np.zeros(len(rows), CALL_DTYPE)
    for name, place_of in (("group", names.group), ("operation", names.operation)):
        used = np.unique(rows[name])
        table = np.zeros(len(window.names), np.int64)
        table[used] = [place_of(window.names[text]) for text in used.tolist()]
        calls[name] = table[rows[name]]
    calls["size_class"] = np.minimum(rows["size_class"], SIZE_CLASSES - 1)
    calls["step"] = window.digest_ns
    calls["number"] = rows["number"]
    calls["start_ns"] = window.start_ns + rows["start_us"].astype(np.int64) * 1000
    calls["end_ns"] = calls["start_ns"] + rows["lasted_ns"].astype(np.int64)
    is_collective = np.array([not is_point_to_point(name) for name in names.operations], bool)
    return calls[is_collective[calls["operation"]]] if len(calls) else calls
