"""Who comes last to the collectives of a group, so that the others wait.

All members of a collective leave it at about the same time, so whoever came last has the shortest
duration. Example, the durations of one reduction on four ranks::

    rank 0   0.47 s   came last, 1.13 s after the others
    rank 1   1.60 s
    rank 2   1.62 s
    rank 3   1.65 s

No clock is needed for that, which matters between hosts. The waits of a step are summed over all
collectives of a group: chance evens out, and a rank that is late by a little each time stands out.
Several ranks may be late together, such as those of a slow host. So the members are sorted by how
long they waited, and the widest gap in the first half divides the late ones from those that wait.
Each late one gets a vote. Where the gap is small nobody is late, and there is no vote.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from msmon.insight.job import JobWindow
from msmon.insight.matching import Matched
from msmon.records.batch import Column

LEAST_GAP_NS = 200_000
"""A vote needs a gap of at least this, in a step."""

LEAST_GAP_SHARE = 0.02
"""And of this share of the time that the group communicates in a step."""

LEAST_STEP_SHARE = 0.002
"""And of this share of the step."""

VOTE_DTYPE = np.dtype(
    [
        ("group", "<u4"), ("member", "<u4"), ("step", "<i8"), ("size", "<u4"), ("late", "<u4"),
        ("gap_ns", "<i8"), ("excess_ns", "<i8"), ("gain_ns", "<i8"),
    ]
)  # fmt: skip
"""One row per late member of a group in a step, in which ``late`` of ``size`` members were late.
The gap divides those that were late from the others. The excess is how much less this one waited
than the first of the others. ``gain_ns`` is
what the job would gain without it: the same, but without the time for which the job waits for the
same collective of another group anyway."""


@dataclass(frozen=True)
class Votes:
    """The collectives of a window. ``votes`` has ``VOTE_DTYPE``, shape (n,)."""

    votes: Column
    wait_ns: float
    """Mean over the members: how long they waited for others in these collectives."""
    left_out: int
    """Collectives that could not be matched."""
    duration_ns: float
    """Time of the steps that the collectives belong to."""


def votes_of(window: JobWindow, matched: Matched) -> Votes:
    """Let the matched collectives of a window vote."""
    duration_ns = window.step_ns * window.collective_steps
    rows, lasted, size = matched.rows, matched.lasted_ns, matched.size
    first = matched.first
    if not len(first):
        return Votes(np.zeros(0, VOTE_DTYPE), 0.0, matched.left_out, duration_ns)
    waits = lasted - np.repeat(lasted[first], size)
    wait_ns = float(waits.sum()) / max(1, len(window.times))
    pairs = _pairs(rows, waits, lasted)
    gap_ns = _gaps(pairs)
    late = _late_pairs(pairs, gap_ns, window.step_ns)
    gain = np.bincount(pairs.of_row, _gains(matched, late[pairs.of_row]), len(pairs.wait_ns))
    votes = np.zeros(int(late.sum()), VOTE_DTYPE)
    for name in ("group", "member", "step"):
        votes[name] = rows[name][pairs.example[late]]
    votes["size"], votes["late"] = pairs.size[late], pairs.late[late]
    votes["gap_ns"] = gap_ns[late]
    votes["excess_ns"] = (pairs.next_ns - pairs.wait_ns)[late]
    votes["gain_ns"] = gain[late]
    return Votes(votes, wait_ns, matched.left_out, duration_ns)


@dataclass
class _Pairs:
    """The members of each group in each step, the last to come first; arrays of one length.

    ``late`` (how many of them are late) and ``next_ns`` (the wait of the first one that is not) are
    the same for all members of a group and step. ``of_row`` says which pair each row belongs to.
    """

    wait_ns: Column
    lasted_ns: Column
    example: Column
    """A row of each pair."""
    place: Column
    """Place within its group and step, from 0."""
    size: Column
    of_row: Column
    late: Column
    next_ns: Column


def _pairs(rows: Column, waits: Column, lasted: Column) -> _Pairs:
    members = int(rows["member"].max()) + 1
    new = np.ones(len(rows), bool)
    new[1:] = (rows["group"][1:] != rows["group"][:-1]) | (rows["step"][1:] != rows["step"][:-1])
    key = (np.cumsum(new) - 1) * members + rows["member"]
    found, example, of_row = np.unique(key, return_index=True, return_inverse=True)
    wait_ns = np.bincount(of_row, waits.astype(np.float64))
    order = np.lexsort((wait_ns, found // members))
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    block = found[order] // members
    begins = np.flatnonzero(np.append(True, block[1:] != block[:-1]))
    sizes = np.diff(np.append(begins, len(block)))
    wait_ns = wait_ns[order]
    place = np.arange(len(order)) - np.repeat(begins, sizes)
    late, next_ns = _divided(wait_ns, begins, sizes)
    return _Pairs(
        wait_ns,
        np.bincount(of_row, lasted.astype(np.float64))[order],
        example[order],
        place,
        np.repeat(sizes, sizes),
        back[of_row],
        np.repeat(late, sizes),
        np.repeat(next_ns, sizes),
    )


def _divided(wait_ns: Column, begins: Column, sizes: Column) -> tuple[Column, Column]:
    """Return (how many are late, wait of the next one) of each run of sorted waits."""
    place = np.arange(len(wait_ns)) - np.repeat(begins, sizes)
    gap = np.zeros(len(wait_ns))
    gap[1:] = wait_ns[1:] - wait_ns[:-1]
    half = np.maximum(np.repeat(sizes, sizes) // 2, 1)
    gap[(place == 0) | (place > half)] = -1.0
    widest = np.maximum.reduceat(gap, begins)
    candidates = np.where(gap == np.repeat(widest, sizes), place, len(wait_ns))
    late = np.minimum(np.minimum.reduceat(candidates, begins), sizes - 1)
    return late, wait_ns[begins + late]


def _gaps(pairs: _Pairs) -> Column:
    """Return the gap in the group and step of each pair, in ns."""
    begins = np.flatnonzero(pairs.place == 0)
    gaps = pairs.next_ns[begins] - pairs.wait_ns[begins + pairs.late[begins] - 1]
    repeated: Column = np.repeat(gaps, pairs.size[begins])
    return repeated


def _late_pairs(pairs: _Pairs, gap_ns: Column, step_ns: float) -> Column:
    """Return which pairs get a vote: bool, in the order of the pairs."""
    begins = np.flatnonzero(pairs.place == 0)
    longest = np.repeat(np.maximum.reduceat(pairs.lasted_ns, begins), pairs.size[begins])
    limit = np.maximum(max(LEAST_GAP_NS, LEAST_STEP_SHARE * step_ns), LEAST_GAP_SHARE * longest)
    voting: Column = (pairs.place < pairs.late) & (gap_ns >= limit)
    return voting


def _gains(matched: Matched, late: Column) -> Column:
    """Return what each row costs the job, in ns; 0 for rows of members that are not late."""
    slack = np.repeat(_slack(matched), matched.size)
    in_time = np.where(late, np.iinfo(np.int64).max, matched.lasted_ns)
    first_in_time = np.repeat(np.minimum.reduceat(in_time, matched.first), matched.size)
    gain = np.where(late, first_in_time - matched.lasted_ns - slack, 0)
    return np.maximum(gain, 0).astype(np.float64)


def _slack(matched: Matched) -> Column:
    """Return how much later the last group of the job ended each collective, in ns."""
    rows = matched.rows[matched.first]
    same = _numbered(rows["step"], rows["operation"], rows["place"])
    last = np.zeros(int(same.max()) + 1, np.int64)
    np.maximum.at(last, same, rows["end_ns"])
    slack: Column = last[same] - rows["end_ns"]
    return slack


def _numbered(*columns: Column) -> Column:
    """Return a number for each row, the same where all columns are the same."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, place = np.unique(column, return_inverse=True)
        number = number * (int(place.max(initial=0)) + 1) + place
    return np.unique(number, return_inverse=True)[1]
