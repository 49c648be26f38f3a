"""Which group needs longer than others for the same collective.

Groups that run the same operation on the same amount of data, with as many members, need the same
time once all members are there. The shortest duration of a collective is that time, because the
last one to come waits for nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from msmon.insight.job import JobWindow
from msmon.insight.matching import Matched, grouped_medians
from msmon.insight.own_work import median_of_others
from msmon.records.batch import Column

SLOW_FACTOR = 1.2
FEWEST_GROUPS = 4
"""Groups that must be alike before one of them can be called slow."""

FEWEST_COLLECTIVES = 3
LEAST_COST = 0.002
"""Share of a step below which a slow group is not worth a word."""


@dataclass(frozen=True)
class SlowGroup:
    """A group that needs ``factor`` times as long as its like, ``excess_ns`` per step in all."""

    group: int
    factor: float
    excess_ns: float
    members: tuple[int, ...]


def slow_groups(window: JobWindow, matched: Matched) -> list[SlowGroup]:
    """Return the groups whose collectives take longer than those of their like."""
    times = _transfer_times(window, matched)
    groups, members_of = window.memberships
    found: dict[int, SlowGroup] = {}
    for operation, size_class, members in np.unique(times[["operation", "size_class", "members"]]):
        alike = times[
            (times["operation"] == operation)
            & (times["size_class"] == size_class)
            & (times["members"] == members)
        ]
        if len(alike) < FEWEST_GROUPS:
            continue
        usual = median_of_others(alike["median_ns"][:, None])[:, 0]
        for row in np.flatnonzero(alike["median_ns"] >= SLOW_FACTOR * usual).tolist():
            group = int(alike["group"][row])
            excess = float((alike["median_ns"][row] - usual[row]) * alike["per_step"][row])
            factor = float(alike["median_ns"][row] / usual[row])
            before = found.get(group)
            if before is not None:
                factor, excess = max(factor, before.factor), excess + before.excess_ns
            found[group] = SlowGroup(
                group, factor, excess, tuple(members_of[groups == group].tolist())
            )
    worth = [one for one in found.values() if one.excess_ns >= LEAST_COST * window.step_ns]
    return sorted(worth, key=lambda one: -one.excess_ns)


def common_members(groups: list[SlowGroup]) -> list[int]:
    """Return who is in all slow groups, if there are several: it may be its link."""
    if len(groups) < 2:
        return []
    return sorted(set.intersection(*(set(one.members) for one in groups)))


_TIME_DTYPE = np.dtype(
    [
        ("group", "<u4"), ("operation", "<u4"), ("size_class", "<u1"), ("members", "<u4"),
        ("median_ns", "<f8"), ("per_step", "<f8"),
    ]
)  # fmt: skip


def _transfer_times(window: JobWindow, matched: Matched) -> Column:
    """Return the median transfer time per group, operation and size; dtype ``_TIME_DTYPE``."""
    if not len(matched.first):
        return np.zeros(0, _TIME_DTYPE)
    like = matched.rows[["group", "operation", "size_class"]][matched.first]
    series, which = np.unique(like, return_inverse=True)
    counts = np.bincount(which)
    times = np.zeros(len(series), _TIME_DTYPE)
    for name in ("group", "operation", "size_class"):
        times[name] = series[name]
    times["median_ns"] = grouped_medians(matched.lasted_ns[matched.first], which)
    times["members"] = grouped_medians(matched.size, which)
    times["per_step"] = counts / max(1, window.collective_steps)
    enough: Column = times[counts >= FEWEST_COLLECTIVES]
    return enough
