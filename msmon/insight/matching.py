"""Which rows of different ranks are the same collective.

The order of collectives within a group is the same on all its ranks, so the rows of the same step,
group, operation and place belong together. Two things may spoil that, and such collectives are left
out and counted: a rank that was not seen, and a rank that sorted a collective into another step
than the others. The second shows in the ends, because all members leave a collective together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from msmon.insight.job import COLLECTIVE_DTYPE, JobWindow
from msmon.records.batch import Column

MOST_APART_NS = 20_000_000
MOST_APART_SHARE = 0.02
"""Rows that end further apart than this many ns and this share of a step do not belong together."""


@dataclass(frozen=True)
class Matched:
    """The matched collectives of a window, each a run of ``rows``.

    ``rows`` has dtype ``COLLECTIVE_DTYPE`` and lies collective by collective, the shortest duration
    first; ``lasted_ns`` are the durations. ``first`` and ``size`` (shape (collectives,)) say where
    each one begins and how many members it has, at least two.
    """

    rows: Column
    lasted_ns: Column
    first: Column
    size: Column
    left_out: int
    """Collectives that could not be matched."""


def matched_collectives(window: JobWindow, same_position: Column) -> Matched:
    """Match the collectives of the groups that join ranks of one position.

    ``same_position``: bool, shape (groups,). In other groups stages meet, and which one comes last
    says nothing about a rank.
    """
    rows = window.collectives
    if len(rows):
        rows = rows[same_position[rows["group"]]]
    if not len(rows):
        nothing = np.zeros(0, np.int64)
        return Matched(np.zeros(0, COLLECTIVE_DTYPE), nothing, nothing, nothing, 0)
    lasted = rows["end_ns"] - rows["start_ns"]
    order = np.lexsort((lasted, rows["place"], rows["operation"], rows["group"], rows["step"]))
    rows, lasted = rows.take(order), lasted[order]
    first = np.flatnonzero(_begins(rows))
    size = np.diff(np.append(first, len(rows)))
    several = size > 1
    members = np.bincount(window.memberships[0], minlength=len(window.names.groups))
    usable = several & (size == members[rows["group"][first]])
    usable &= _end_together(rows, first, size, window.step_ns)
    kept = np.flatnonzero(np.repeat(usable, size))
    size = size[usable]
    return Matched(
        rows.take(kept), lasted[kept], np.cumsum(size) - size, size, int((several & ~usable).sum())
    )


def grouped_medians(values: Column, group: Column) -> Column:
    """Return the median of the values of each group, shape (groups,); 0 for an empty group."""
    order = np.lexsort((values, group))
    count = np.bincount(group)
    begins = np.cumsum(count) - count
    last = len(values) - 1
    low = values[order][np.minimum(begins + np.maximum(count - 1, 0) // 2, last)]
    high = values[order][np.minimum(begins + count // 2, last)]
    medians: Column = np.where(count > 0, (low + high) / 2, 0.0)
    return medians


def _begins(rows: Column) -> Column:
    """Return which rows are the first of their collective, in sorted rows."""
    new = np.ones(len(rows), bool)
    new[1:] = False
    for name in ("step", "group", "operation", "place"):
        new[1:] |= rows[name][1:] != rows[name][:-1]
    return new


def _end_together(rows: Column, first: Column, size: Column, step_ns: float) -> Column:
    """Return which collectives end at the same time on all members, shape (collectives,).

    Clocks of hosts differ, so the usual distance of each member from the others is taken off.
    """
    which = np.repeat(np.arange(len(first)), size)
    middle = rows["end_ns"][first + size // 2]
    apart = (rows["end_ns"] - middle[which]).astype(np.float64)
    apart -= grouped_medians(apart, rows["member"].astype(np.int64))[rows["member"]]
    spread = np.maximum.reduceat(apart, first) - np.minimum.reduceat(apart, first)
    together: Column = spread <= max(MOST_APART_NS, MOST_APART_SHARE * step_ns)
    return together
