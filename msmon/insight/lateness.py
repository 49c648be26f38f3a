"""Who comes last to the collectives of a group, so that the others wait, and what that costs.

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

While a rank is late, those that are ready wait. They pass the delay on to the groups that they
share with further ranks, and come late there without any fault of their own. The job could be
faster by the largest excess along this chain: that is what the late rank costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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

SURE = 1e-4
"""A member is surely late if chance gives it so many votes with at most this probability."""

LIKELY = 0.07
"""And likely late up to this one: of two members, the same one four times. That is enough where
something else speaks against it."""

LEAST_SHARE = 0.5
"""Late is who has this share of the votes, or of the excess."""

LEAST_STEPS = 3
"""Steps in which a member must have been late."""

LEAST_EXCESS_SHARE = 0.01
"""Late is also only who costs at least this share of the time."""

WEIGHTY = 0.3
"""Votes whose gap is below this share of the third largest one do not count."""

REMEMBERED = 16
"""Windows whose votes are remembered. Few collectives give few votes, so it may take long until
they can't be chance."""

RECENT = 4
"""Windows in which most lateness shows already. What shows here is over soonest when it ends."""

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


@dataclass(frozen=True)
class Late:
    """A member that is late in a group; ``share`` of its excess, ``excess_share`` of the time."""

    member: int
    group: int
    share: float
    excess_share: float
    chance: float
    """Probability of so many votes by chance."""

    @property
    def is_sure(self) -> bool:
        """Whether it can't be chance."""
        return self.chance < SURE


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


def late_members(windows: Sequence[Votes]) -> list[Late]:
    """Return who is late over several windows, the costliest first; a member may be in two groups.

    ``windows`` are the last ones of a job, at least one. What the latest of them show counts; where
    they have too few votes, those before them count as well.
    """
    latest = {(one.member, one.group): one for one in _late_in(windows[-RECENT:])}
    found = {
        (one.member, one.group): one
        for one in _late_in(windows)
        if (one.member, one.group) not in latest or not latest[one.member, one.group].is_sure
    }
    longer = (_since_its_first(one, windows) for one in found.values())
    found = {(one.member, one.group): one for one in longer if one is not None}
    late = {**latest, **found}
    return sorted(late.values(), key=lambda one: -one.excess_share)


def _since_its_first(late: Late, windows: Sequence[Votes]) -> Late | None:
    """Return a late member with its excess since it was first late; None if that is long over."""
    excess = [_excess_in(late, window) for window in windows]
    last = len(excess) - RECENT
    if not any(excess[max(0, last) :]):
        return None
    first = next(place for place, one in enumerate(excess) if one)
    duration_ns = sum(window.duration_ns for window in windows[min(first, max(0, last)) :])
    return replace(late, excess_share=sum(excess) / duration_ns)


def _excess_in(late: Late, window: Votes) -> float:
    votes = window.votes
    mine = (votes["member"] == late.member) & (votes["group"] == late.group)
    return float(votes["excess_ns"][mine].sum())


def _weighty(votes: Column) -> Column:
    """Return the votes without those whose gap is small beside the largest ones of the group.

    Somebody is last by a little in each step, and a real lateness must not drown in that. The
    largest gaps of all may be hiccups, so it is the third one that counts.
    """
    if not len(votes):
        return votes
    order = np.lexsort((votes["step"], -votes["gap_ns"], votes["group"]))
    votes = votes.take(order)
    new_group = np.append(True, votes["group"][1:] != votes["group"][:-1])
    new_step = new_group | np.append(True, votes["step"][1:] != votes["step"][:-1])
    step = np.cumsum(new_step) - 1
    group = np.cumsum(new_group) - 1
    place = step - step[new_group][group]
    compared = np.zeros(int(group[-1]) + 1, np.int64)
    at_place = place == LEAST_STEPS - 1
    compared[group[at_place]] = votes["gap_ns"][at_place]
    weighty: Column = votes[votes["gap_ns"] >= WEIGHTY * compared[group]]
    return weighty


def _late_in(windows: Sequence[Votes]) -> list[Late]:
    votes = _weighty(np.concatenate([window.votes for window in windows]))
    duration_ns = sum(window.duration_ns for window in windows)
    if not len(votes) or not duration_ns:
        return []
    group = votes["group"].astype(np.int64)
    part = 1 / votes["late"]
    steps_of = np.bincount(group, part)  # each step of a group has as many rows as late members
    excess_of = np.bincount(group, part * votes["excess_ns"])
    luck = np.bincount(group, 1 / votes["size"]) / np.maximum(steps_of, 1e-9)
    members = int(votes["member"].max()) + 1
    pairs, place = np.unique(group * members + votes["member"], return_inverse=True)
    count = np.bincount(place)
    excess = np.bincount(place, votes["excess_ns"].astype(np.float64))
    of_group = pairs // members
    share = np.minimum(1.0, excess / np.maximum(excess_of[of_group], 1.0))
    most = (count >= LEAST_SHARE * steps_of[of_group]) | (share >= LEAST_SHARE)
    likely = most & (count >= LEAST_STEPS) & (excess >= LEAST_EXCESS_SHARE * duration_ns)
    late = []
    for row in np.flatnonzero(likely).tolist():
        in_group = int(of_group[row])
        tries = round(float(steps_of[in_group]))
        chance = chance_of(int(count[row]), tries, float(luck[in_group]))
        if chance < LIKELY:
            late.append(
                Late(
                    int(pairs[row] % members),
                    in_group,
                    float(share[row]),
                    float(excess[row] / duration_ns),
                    chance,
                )
            )
    return late


def chance_of(hits: int, tries: int, probability: float) -> float:
    """Return the probability of at least ``hits`` in ``tries``, each with ``probability``."""
    if hits <= 0 or probability >= 1.0:
        return 1.0
    log_yes, log_no = math.log(probability), math.log1p(-probability)
    terms = [
        math.lgamma(tries + 1) - math.lgamma(k + 1) - math.lgamma(tries - k + 1)
        + k * log_yes + (tries - k) * log_no
        for k in range(hits, tries + 1)
    ]  # fmt: skip
    highest = max(terms)
    return min(1.0, math.exp(highest) * sum(math.exp(term - highest) for term in terms))


def chain_of(culprit: int, late: Sequence[Late], window: JobWindow) -> list[int]:
    """Return the late members to which the culprit's delay is passed on, itself first."""
    chain = [culprit]
    others = {one.member for one in late} - {culprit}
    for member in chain:
        near = others & window.near(member)
        chain += sorted(near)
        others -= near
    return chain


def cost_of(chain: Sequence[int], windows: Sequence[Votes]) -> float:
    """Return the share of the time that the chain costs, 0 to 1.

    The excess of a group is summed over a step, without what the job would have waited for another
    group anyway, and the group with the most counts.
    """
    latest = windows[-RECENT:]
    votes = np.concatenate([window.votes for window in latest])
    duration_ns = sum(window.duration_ns for window in latest)
    mine: Column = votes[np.isin(votes["member"], list(chain))]
    if not len(mine) or not duration_ns:
        return 0.0
    keys, place = np.unique(mine[["step", "group"]], return_inverse=True)
    excess = np.bincount(place, mine["gain_ns"] / mine["late"])
    steps, which = np.unique(keys["step"], return_inverse=True)
    largest = np.zeros(len(steps))
    np.maximum.at(largest, which, excess)
    return min(1.0, float(largest.sum()) / duration_ns)
