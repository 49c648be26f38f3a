"""Who comes last to a collective, so that the others wait.

All members of a collective leave it at about the same time, so whoever came last has the shortest
duration. Example, the durations of one reduction on four ranks::

    rank 0   0.47 s   came last: one vote, with an excess of 1.13 s (second shortest - shortest)
    rank 1   1.60 s
    rank 2   1.62 s
    rank 3   1.65 s

No clock is needed for that, which matters between hosts. Where all durations are alike nobody
waited, and there is no vote.

While a rank is late, those that are ready wait. They pass the delay on to the groups that they
share with further ranks, and come late there without any fault of their own. The job could be
faster by the largest excess along this chain: that is what the late rank costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from msmon.insight.job import JobWindow
from msmon.insight.matching import Matched
from msmon.records.batch import Column

LEAST_WAIT_NS = 200_000
"""A vote needs a wait of at least this."""

LEAST_WAIT_SHARE = 0.1
"""And of this share of the longest duration."""

LEAST_STEP_SHARE = 1e-4
"""And of this share of a step. Short collectives by the dozen would vote by chance."""

MOST_CHANCE = 1e-4
"""Late is who has so many votes that chance gives them with at most this probability."""

LEAST_VOTE_SHARE = 0.5
LEAST_EXCESS_SHARE = 0.01
"""Late is also only who costs at least this share of the time."""

VOTE_DTYPE = np.dtype(
    [
        ("group", "<u4"), ("member", "<u4"), ("step", "<i8"), ("size", "<u4"),
        ("excess_ns", "<i8"), ("slack_ns", "<i8"),
    ]
)  # fmt: skip
"""One row per collective in which somebody waited: who came last, of how many members. The excess
is second shortest minus shortest. ``slack_ns`` is how much later the same collective of another
group ended: until then the job waits anyway."""


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
    """A member that is late in a group; ``share`` of its votes, ``excess_ns`` in all."""

    member: int
    group: int
    share: float
    excess_ns: float
    waiting: int
    """How many members wait for it."""


def votes_of(window: JobWindow, matched: Matched) -> Votes:
    """Let the matched collectives of a window vote."""
    duration_ns = window.step_ns * window.collective_steps
    rows, lasted, size = matched.rows, matched.lasted_ns, matched.size
    first = matched.first
    if not len(first):
        return Votes(np.zeros(0, VOTE_DTYPE), 0.0, matched.left_out, duration_ns)
    beyond = lasted - np.repeat(lasted[first], size)
    wait_ns = float(beyond.sum()) / max(1, len(window.times))
    shortest, second, longest = lasted[first], lasted[first + 1], lasted[first + size - 1]
    limit = np.maximum(LEAST_WAIT_NS, LEAST_WAIT_SHARE * longest)
    voting = longest - shortest >= np.maximum(limit, LEAST_STEP_SHARE * window.step_ns)
    votes = np.zeros(int(voting.sum()), VOTE_DTYPE)
    for name in ("group", "member", "step"):
        votes[name] = rows[name][first[voting]]
    votes["size"] = size[voting]
    votes["excess_ns"] = (second - shortest)[voting]
    votes["slack_ns"] = _slack(matched)[voting]
    return Votes(votes, wait_ns, matched.left_out, duration_ns)


def _slack(matched: Matched) -> Column:
    """Return how much later the last group of the job ended each collective, in ns."""
    rows = matched.rows[matched.first]
    _, place = np.unique(rows[["step", "operation", "place"]], return_inverse=True)
    last = np.zeros(int(place.max()) + 1, np.int64)
    np.maximum.at(last, place, rows["end_ns"])
    slack: Column = last[place] - rows["end_ns"]
    return slack


def late_members(windows: Sequence[Votes]) -> list[Late]:
    """Return who is late over several windows, the costliest first; a member may be in two groups.

    ``windows`` are those of one job, at least one.
    """
    votes = np.concatenate([window.votes for window in windows])
    duration_ns = sum(window.duration_ns for window in windows)
    if not len(votes) or not duration_ns:
        return []
    in_group = np.bincount(votes["group"])
    pairs, place = np.unique(votes[["group", "member"]], return_inverse=True)
    count = np.bincount(place)
    excess = np.bincount(place, votes["excess_ns"].astype(np.float64))
    size = np.zeros(len(pairs), np.int64)
    size[place] = votes["size"]
    share = count / in_group[pairs["group"]]
    likely = (share >= LEAST_VOTE_SHARE) & (excess >= LEAST_EXCESS_SHARE * duration_ns)
    late = [
        Late(
            int(pairs["member"][row]),
            int(pairs["group"][row]),
            float(share[row]),
            float(excess[row]),
            int(size[row]) - 1,
        )
        for row in np.flatnonzero(likely).tolist()
        if chance_of(int(count[row]), int(in_group[pairs["group"][row]]), 1 / int(size[row]))
        < MOST_CHANCE
    ]
    return sorted(late, key=lambda one: -one.excess_ns)


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


def top_shares(windows: Sequence[Votes]) -> tuple[float, float]:
    """Return (median over the groups of the largest share of votes, median size of a group)."""
    votes = np.concatenate([window.votes for window in windows])
    if not len(votes):
        return 0.0, 0.0
    pairs, place = np.unique(votes[["group", "member"]], return_inverse=True)
    highest = np.zeros(int(votes["group"].max()) + 1)
    np.maximum.at(highest, pairs["group"], np.bincount(place))
    total = np.bincount(votes["group"], minlength=len(highest))
    voted = total > 0
    return float(np.median(highest[voted] / total[voted])), float(np.median(votes["size"]))


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
    votes = np.concatenate([window.votes for window in windows])
    duration_ns = sum(window.duration_ns for window in windows)
    mine: Column = votes[np.isin(votes["member"], list(chain))]
    if not len(mine) or not duration_ns:
        return 0.0
    keys, place = np.unique(mine[["step", "group"]], return_inverse=True)
    gain = np.maximum(mine["excess_ns"] - mine["slack_ns"], 0)
    excess = np.bincount(place, gain.astype(np.float64))
    steps, which = np.unique(keys["step"], return_inverse=True)
    largest = np.zeros(len(steps))
    np.maximum.at(largest, which, excess)
    return min(1.0, float(largest.sum()) / duration_ns)
