"""Who is late, step after step, and what that costs the job.

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
from msmon.insight.votes import Votes
from msmon.records.batch import Column

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
