"""What a late rank costs the job.

While a rank is late, those that are ready wait. The others of its group wait for it; they pass the
delay on to the groups that they share with further ranks, which then come late there without any
fault of their own. The job could be faster by the largest excess along this chain, since the
excess of a collective is how much earlier it would have ended if only the last one had been on
time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from msmon.insight.job import JobWindow
from msmon.insight.lateness import Late, Votes
from msmon.records.batch import Column


def chain_of(culprit: int, late: Sequence[Late], window: JobWindow) -> list[int]:
    """Return the late members to which the culprit's delay is passed on, itself first."""
    pairs = np.unique(window.traffic[["group", "member"]])
    chain = [culprit]
    others = {one.member for one in late} - {culprit}
    for member in chain:
        groups = pairs["group"][pairs["member"] == member]
        near = set(pairs["member"][np.isin(pairs["group"], groups)].tolist())
        chain += sorted(others & near)
        others -= near
    return chain


def cost_of(chain: Sequence[int], windows: Sequence[Votes]) -> float:
    """Return the share of the time that the chain costs, 0 to 1.

    The excess of a group is summed over a step, and the group with the most counts.
    """
    votes = np.concatenate([window.votes for window in windows])
    duration_ns = sum(window.duration_ns for window in windows)
    mine: Column = votes[np.isin(votes["member"], list(chain))]
    if not len(mine) or not duration_ns:
        return 0.0
    keys, place = np.unique(mine[["step", "group"]], return_inverse=True)
    excess = np.bincount(place, mine["excess_ns"].astype(np.float64))
    steps, which = np.unique(keys["step"], return_inverse=True)
    largest = np.zeros(len(steps))
    np.maximum.at(largest, which, excess)
    return min(1.0, float(largest.sum()) / duration_ns)
