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
    shape (members, operators), NaN where an operator is not compared. ``weight`` is the total time
    in ns per member and operator.
    """

    ratio: Column
    operator_ratio: Column
    weight: Column

    def worst(self, member: int, count: int = 2) -> list[tuple[int, float]]:
        """Return (operator, ratio) of those that cost this member most, the costliest first."""
        ratio = self.operator_ratio[member]
        excess = np.nan_to_num(self.weight[member] * (1 - 1 / ratio), nan=-np.inf)
        order = np.argsort(-excess, kind="stable")[:count].tolist()
        return [(place, float(ratio[place])) for place in order if excess[place] > 0]


@dataclass(frozen=True)
class Work:
    """Rows of ``WORK_DTYPE`` as matrices of shape (members, operators); 0 where there is none."""

    count: Column
    total_ns: Column
    median_ns: Column
    spread: Column


def work_of(window: JobWindow, on_host: bool = False) -> Work:
    """Return the work of a window on the devices, or that of the hosts."""
    rows = window.work
    wanted = np.array([host is on_host for _, host in window.names.operators], bool)
    if len(rows):
        rows = rows[wanted[rows["operator"]]]
    shape = (len(window.names.members), len(window.names.operators))
    matrices = []
    for name in ("count", "total_ns", "median_ns", "spread"):
        matrix = np.zeros(shape)
        matrix[rows["member"], rows["operator"]] = rows[name]
        matrices.append(matrix)
    return Work(*matrices)


def own_work(work: Work, positions: Column) -> OwnWork:
    """Compare each member with the others of its position."""
    ratio = np.full(work.count.shape, np.nan)
    for position in np.unique(positions[positions >= 0]):
        members = np.flatnonzero(positions == position)
        if len(members) > 1:
            usable = np.flatnonzero((work.count[members] >= FEWEST_CALLS).all(axis=0))
            medians = work.median_ns[np.ix_(members, usable)]
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio[np.ix_(members, usable)] = medians / median_of_others(medians)
    return _summed(ratio, work.total_ns)


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
    ratio = np.full(level.shape, np.nan)
    if len(numbers) > 1 and usable.any():
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio[:, usable] = level[:, usable] / median_of_others(level[:, usable])
    return _summed(ratio, total)


def median_of_others(values: Column) -> Column:
    """Return for each row the median of all other rows, column by column (at least two rows).

    Of two middle values the lower one counts: of three ranks one may be slow, and the mean of a
    slow and a healthy one would make the third look fast. Leaving one out of sorted values moves
    the middle by at most one place.
    """
    rows = len(values)
    order = np.argsort(values, axis=0, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(rows)[:, None], axis=0)
    in_order = np.take_along_axis(values, order, axis=0)
    middle = (rows - 2) // 2
    medians: Column = np.take_along_axis(
        in_order, np.where(place > middle, middle, middle + 1), axis=0
    )
    return medians


def typical_deviation(ratio: Column) -> float:
    """Return how much members usually differ from their peers (sigma); never below the floor."""
    known = ratio[~np.isnan(ratio)]
    deviation = float(np.median(np.abs(known - 1))) if len(known) else 0.0
    return max(MAD_TO_SIGMA * deviation, NOISE_FLOOR)


def _summed(operator_ratio: Column, weight: Column) -> OwnWork:
    operator_ratio = np.where(np.isfinite(operator_ratio), operator_ratio, np.nan)
    operator_ratio = np.minimum(operator_ratio, HIGHEST_RATIO)
    known = ~np.isnan(operator_ratio)
    # What the peers need for the calls of this member is its time divided by the ratio.
    for_peers = np.where(known, weight / np.where(known, operator_ratio, 1.0), 0.0).sum(axis=1)
    own = np.where(known, weight, 0.0).sum(axis=1)
    ratio = np.full(len(weight), np.nan)
    np.divide(own, for_peers, out=ratio, where=for_peers > 0)
    return OwnWork(ratio, operator_ratio, weight)
