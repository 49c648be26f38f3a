"""How long the groups need for their collectives, once all members are there.

The last one to come waits for nobody, so the shortest duration of a collective is the time of its
transfer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from msmon.insight.baselines import MAD_TO_SIGMA, NEVER, SeriesSet
from msmon.insight.job import JobWindow
from msmon.insight.matching import Matched, grouped_medians
from msmon.insight.own_work import median_of_others
from msmon.records.batch import Column

SLOW_FACTOR = 1.2
SLOW_SIGMAS = 5.0
"""A group is slow if it needs so many times as long, and is so far beyond what is usual."""

FEWEST_GROUPS = 4
"""Groups that must be alike before one of them can be called slow."""

FEWEST_COLLECTIVES = 3
WINDOWS = 4
"""Windows whose transfers are taken together. Some groups meet once in a step only."""

LEAST_COST = 0.002
"""Share of a step below which a slow group is not worth a word."""

TRANSFER_DTYPE = np.dtype(
    [
        ("group", "<u4"), ("operation", "<u4"), ("size_class", "<u1"), ("members", "<u4"),
        ("lasted_ns", "<f8"), ("per_step", "<f8"),
    ]
)  # fmt: skip
"""One row per group, operation and size: median time of a transfer, and how often it comes."""


@dataclass(frozen=True)
class SlowGroup:
    """A group that needs ``factor`` times as long as it should, ``excess_ns`` per step in all."""

    group: int
    factor: float
    excess_ns: float
    members: tuple[int, ...]
    before: bool = False
    """It is compared with its own past, since too few groups are like it."""


class Transfers:
    """The transfers of all groups, window after window. Belongs to one thread."""

    def __init__(self) -> None:
        self._latest: deque[tuple[Column, int]] = deque(maxlen=WINDOWS)
        self._places: dict[tuple[int, int, int], int] = {}
        self._series = SeriesSet()
        self._slow = np.zeros(0, bool)

    def slow_groups(self, number: int, window: JobWindow, matched: Matched) -> list[SlowGroup]:
        """Take window ``number``; return the groups that need too long, the costliest first."""
        self._latest.append((_transfers(matched), window.collective_steps))
        now = _medians([self._latest[-1]], 1)
        changed, before = self._changed(number, now)
        together = self._together()
        excess, factor = _against_alike(together)
        alone = np.isnan(factor)
        places = self._numbered(together)
        own = alone & changed[places]
        factor[own] = 1 + before[places[own]]
        excess[own] = together["lasted_ns"][own] * (1 - 1 / factor[own])
        is_slow = np.nan_to_num(factor) >= SLOW_FACTOR
        self._slow = np.zeros(len(self._places), bool)
        self._slow[places[is_slow]] = True
        return _by_group(together[is_slow], excess[is_slow], factor[is_slow], own[is_slow], window)

    def _together(self) -> Column:
        """Return the medians of the fewest windows that have enough collectives."""
        enough = _medians([self._latest[-1]], FEWEST_COLLECTIVES)
        more = _medians(list(self._latest), FEWEST_COLLECTIVES)
        have = np.isin(self._numbered(more), self._numbered(enough))
        return np.concatenate([enough, more[~have]])

    def _changed(self, number: int, now: Column) -> tuple[Column, Column]:
        """Return (whether each series takes longer than before, by what share)."""
        places = self._numbered(now)
        values = np.full(len(self._places), np.nan)
        values[places] = now["lasted_ns"]
        healthy = np.ones(len(values), bool)
        healthy[: len(self._slow)] = ~self._slow
        self._series.add(number, values, healthy)
        return self._series.changed_at() != NEVER, self._series.effect

    def _numbered(self, rows: Column) -> Column:
        """Return the number of each row's series."""
        keys = zip(*(rows[name].tolist() for name in ("group", "operation", "size_class")))
        return np.array([self._places.setdefault(key, len(self._places)) for key in keys], np.int64)


def common_members(groups: list[SlowGroup]) -> list[int]:
    """Return who is in all slow groups, if there are several: it may be its link."""
    if len(groups) < 2:
        return []
    return sorted(set.intersection(*(set(one.members) for one in groups)))


def _transfers(matched: Matched) -> Column:
    """Return one row per collective, dtype ``TRANSFER_DTYPE``."""
    transfers = np.zeros(len(matched.first), TRANSFER_DTYPE)
    for name in ("group", "operation", "size_class"):
        transfers[name] = matched.rows[name][matched.first]
    transfers["members"] = matched.size
    transfers["lasted_ns"] = matched.lasted_ns[matched.first]
    return transfers


def _medians(windows: list[tuple[Column, int]], fewest: int) -> Column:
    """Return the medians of some windows, of what was seen at least ``fewest`` times."""
    rows = np.concatenate([transfers for transfers, _ in windows])
    if not len(rows):
        return rows
    key = rows["group"].astype(np.int64)
    for name in ("operation", "size_class"):
        key = key * (int(rows[name].max()) + 1) + rows[name]
    _, example, which = np.unique(key, return_index=True, return_inverse=True)
    found = rows[example]
    count = np.bincount(which)
    found["lasted_ns"] = grouped_medians(rows["lasted_ns"], which)
    found["per_step"] = count / max(1, sum(steps for _, steps in windows))
    enough: Column = found[count >= fewest]
    return enough


def _against_alike(transfers: Column) -> tuple[Column, Column]:
    """Return (excess of a transfer in ns, factor) against groups of the same operation, size and
    number of members; NaN where there are too few."""
    excess, factor = np.full(len(transfers), np.nan), np.full(len(transfers), np.nan)
    kinds = transfers[["operation", "size_class", "members"]]
    _, which = np.unique(kinds, return_inverse=True)
    for kind in range(int(which.max(initial=-1)) + 1):
        alike = np.flatnonzero(which == kind)
        if len(alike) < FEWEST_GROUPS:
            continue
        lasted = transfers["lasted_ns"][alike]
        usual = np.maximum(median_of_others(lasted[:, None])[:, 0], 1.0)
        ratio = lasted / usual
        sigma = MAD_TO_SIGMA * float(np.median(np.abs(ratio - 1)))
        beyond = ratio - 1 >= SLOW_SIGMAS * sigma
        factor[alike] = np.where(beyond, ratio, 1.0)
        excess[alike] = lasted - usual
    return excess, factor


def _by_group(
    slow: Column, excess: Column, factor: Column, own: Column, window: JobWindow
) -> list[SlowGroup]:
    groups, members_of = window.memberships
    found = []
    for group in np.unique(slow["group"]).tolist():
        mine = slow["group"] == group
        found.append(
            SlowGroup(
                group,
                float(factor[mine].max()),
                float((excess[mine] * slow["per_step"][mine]).sum()),
                tuple(members_of[groups == group].tolist()),
                bool(own[mine].all()),
            )
        )
    worth = [one for one in found if one.excess_ns >= LEAST_COST * window.step_ns]
    return sorted(worth, key=lambda one: -one.excess_ns)
