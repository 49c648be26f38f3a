"""How long a rank needs for its own work, against the peers of its position.

Waiting is in communication; kernels don't wait. So a rank whose kernels take longer than those of
its peers is slow itself, and does not only look slow because it waits for another one. The median
of each operator is compared, which a few long calls do not move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from msmon.insight.baselines import MAD_TO_SIGMA, NOISE_FLOOR
from msmon.insight.job import JobWindow
from msmon.records.batch import Column

FEWEST_CALLS = 30
"""Calls of an operator that a median needs, on every peer."""

HIGHEST_RATIO = 100.0
"""Ratios are cut here, so that one operator that was fast by accident decides nothing."""


@dataclass(frozen=True)
class OwnWork:
    """The own work of all members in a window; arrays have one row per member.

    ``ratio`` has shape (members,): the time of a member for its own work, divided by what its
    peers need for the same; NaN where there are no peers or too few calls. ``operator_ratio`` has
    shape (members, columns), NaN where an operator is not compared. ``weight`` is the total time
    in ns per member and column, ``operators`` says which operator a column stands for.
    """

    ratio: Column
    operator_ratio: Column
    weight: Column
    operators: Column

    def worst(self, member: int, count: int = 2) -> list[tuple[int, float]]:
        """Return (operator, ratio) of those that cost this member most, the costliest first."""
        ratio = self.operator_ratio[member]
        excess = np.nan_to_num(self.weight[member] * (1 - 1 / ratio), nan=-np.inf)
        order = np.argsort(-excess, kind="stable")[:count].tolist()
        return [
            (int(self.operators[place]), float(ratio[place]))
            for place in order
            if excess[place] > 0
        ]


@dataclass(frozen=True)
class Work:
    """Rows of ``WORK_DTYPE`` as matrices of shape (members, columns); 0 where there is none.

    ``operators`` (shape (columns,)) says which operator a column stands for.
    """

    count: Column
    total_ns: Column
    median_ns: Column
    spread: Column
    operators: Column


def work_of(window: JobWindow) -> tuple[Work, Work]:
    """Return the work of a window on the devices, and that of the hosts."""
    rows = window.work
    on_host = np.array([host for _, host in window.names.operators], bool)
    both = []
    is_host = on_host[rows["operator"]] if len(rows) else np.zeros(0, bool)
    for side in (False, True):
        operators = np.flatnonzero(on_host == side)
        column = np.zeros(len(on_host), np.int64)
        column[operators] = np.arange(len(operators))
        mine = np.flatnonzero(is_host == side)
        at = rows["member"][mine] * np.int64(len(operators)) + column[rows["operator"][mine]]
        shape = (len(window.names.members), len(operators))
        count, total_ns, median_ns, spread = (
            _matrix(rows[name][mine], at, shape)
            for name in ("count", "total_ns", "median_ns", "spread")
        )
        both.append(Work(count, total_ns, median_ns, spread, operators))
    return both[0], both[1]


def _matrix(values: Column, at: Column, shape: tuple[int, int]) -> Column:
    matrix = np.zeros(shape)
    matrix.reshape(-1)[at] = values
    return matrix


def own_work(work: Work, positions: Column) -> OwnWork:
    """Compare each member with the others of its position."""
    compared = np.full(work.count.shape, np.nan)
    ratio = np.full(len(work.count), np.nan)
    for position in np.unique(positions[positions >= 0]):
        members = np.flatnonzero(positions == position)
        if len(members) < 2:
            continue
        usable = np.flatnonzero((work.count[members] >= FEWEST_CALLS).all(axis=0))
        where = np.ix_(members, usable)
        by_operator = _ratios(work.median_ns[where])
        compared[where] = by_operator
        ratio[members] = _summed(by_operator, work.total_ns[where])
    return OwnWork(ratio, compared, work.total_ns, work.operators)


def between_positions(work: Work, positions: Column) -> OwnWork:
    """Compare each position with the others; rows are positions instead of members.

    The fastest member stands for its position, since a position is slow only if all of it is.
    """
    numbers = np.unique(positions[positions >= 0])
    level = np.full((len(numbers), work.count.shape[1]), np.nan)
    total = np.zeros_like(level)
    usable = np.ones(work.count.shape[1], bool)
    for place, number in enumerate(numbers):
        members = positions == number
        usable &= (work.count[members] >= FEWEST_CALLS).all(axis=0)
        level[place] = work.median_ns[members].min(axis=0)
        total[place] = np.median(work.total_ns[members], axis=0)
    compared = np.full(level.shape, np.nan)
    ratio = np.full(len(numbers), np.nan)
    if len(numbers) > 1 and usable.any():
        compared[:, usable] = _ratios(level[:, usable])
        ratio = _summed(compared[:, usable], total[:, usable])
    return OwnWork(ratio, compared, total, work.operators)


def median_of_others(values: Column) -> Column:
    """Return for each row the median of all other rows, column by column (at least two rows).

    Of two middle values the lower one counts: of three ranks one may be slow, and the mean of a
    slow and a healthy one would make the third look fast. To leave out one value moves the middle
    by one place at most: a value above the middle leaves it where it is.
    """
    middle = (len(values) - 2) // 2
    in_order = np.partition(values, (middle, middle + 1), axis=0)
    medians: Column = np.where(values > in_order[middle], in_order[middle], in_order[middle + 1])
    return medians


def typical_deviation(ratio: Column) -> float:
    """Return how much members usually differ from their peers (sigma); never below the floor."""
    known = ratio[~np.isnan(ratio)]
    deviation = float(np.median(np.abs(known - 1))) if len(known) else 0.0
    return max(MAD_TO_SIGMA * deviation, NOISE_FLOOR)


def _ratios(medians: Column) -> Column:
    """Return each row's medians against those of the others; NaN where that says nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = medians / median_of_others(medians)
    ratios[~np.isfinite(ratios) | (ratios == 0)] = np.nan
    limited: Column = np.minimum(ratios, HIGHEST_RATIO)
    return limited


def _summed(ratios: Column, weight: Column) -> Column:
    """Return the ratio of the whole work of each row; NaN where nothing is compared."""
    # What the peers need for the calls of this member is its time divided by the ratio.
    for_peers = np.nansum(weight / ratios, axis=1)
    own = np.where(np.isnan(ratios), 0.0, weight).sum(axis=1)
    summed = np.full(len(weight), np.nan)
    np.divide(own, for_peers, out=summed, where=for_peers > 0)
    return summed
