"""Which ranks of a verdict are traced: the one to blame, a healthy peer, and one that waits."""

from __future__ import annotations

import numpy as np

from msmon.insight.job import JobWindow
from msmon.insight.verdict import Verdict


def ranks_to_trace(verdict: Verdict, window: JobWindow | None) -> tuple[int, ...]:
    """Return at most three ranks, the one to blame first; none where no trace would help.

    ``window`` is the last one that was judged.
    """
    chosen = verdict.to_trace[:2]
    if not chosen or window is None:
        return chosen
    victim = _victim(window, {*chosen, *verdict.ranks, *verdict.position}, chosen[0])
    return chosen if victim is None else (*chosen, victim)


def _victim(window: JobWindow, passed_over: set[int], culprit: int) -> int | None:
    """Return the rank that waits longest for others; one that shares a group with the culprit."""
    members = window.names.members
    near = {
        members[other].rank
        for member in np.unique(window.times["member"]).tolist()
        if members[member].rank == culprit
        for other in window.near(member)
    }
    waits = {members[row["member"]].rank: _waiting(row) for row in window.times}
    able = {rank: share for rank, share in waits.items() if rank not in passed_over and share > 0}
    return max(able, key=lambda rank: (rank in near, able[rank]), default=None)


def _waiting(row: np.void) -> float:
    """Return the share of its time in which a rank communicates and no kernel runs."""
    total_ns = int(row["total_ns"])
    return int(row["exposed_ns"]) / total_ns if total_ns else 0.0
