"""Two rules with fixed thresholds, to judge the same windows as msmon does.

Written from descriptions of them, not from their code. Both look at kernels only, name ranks only,
and know neither stages nor groups.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from msmon.insight.job import JobWindow

Rule = Callable[[JobWindow], set[int]]
"""Gets one window after the other and returns the members that it blames now."""


def best_of_all(threshold: float = 0.75) -> Rule:
    """NVRx: the fastest median of a kernel anywhere is the reference. The score of a rank is
    reference / own median, weighted by time; below the threshold it is a straggler."""

    def blamed(window: JobWindow) -> set[int]:
        rows = _on_device(window)
        reference = np.full(len(window.names.operators), np.inf)
        np.minimum.at(reference, rows["operator"], rows["median_ns"])
        weight = rows["total_ns"].astype(np.float64)
        score = weight * reference[rows["operator"]] / rows["median_ns"]
        members = len(window.names.members)
        summed = np.bincount(rows["member"], score, members)
        of_all = np.bincount(rows["member"], weight, members)
        return set(np.flatnonzero(summed < threshold * of_all).tolist())

    return blamed


def running_mean(slower: float = 1.3, times: int = 3, first: int = 5) -> Rule:
    """MindCluster: a rank whose work takes 30 % longer than its mean, three times running. What is
    not that slow moves the mean. The first windows make a mean only."""
    means = np.zeros(0)
    bad = np.zeros(0, np.int64)
    seen = 0

    def blamed(window: JobWindow) -> set[int]:
        nonlocal means, bad, seen
        rows, members = _on_device(window), len(window.names.members)
        value = np.bincount(rows["member"], rows["median_ns"] * rows["count"], members)
        steps = np.zeros(members)
        steps[window.times["member"]] = window.times["steps"]
        value /= np.maximum(1, steps)
        if not seen:
            means, bad = value.copy(), np.zeros(members, np.int64)
        is_bad = (value > slower * means) & (seen >= first)
        seen += 1
        weight = 1 / np.minimum(seen, 20)
        means = np.where(is_bad, means, means + weight * (value - means))
        bad = np.where(is_bad, bad + 1, 0)
        return set(np.flatnonzero(bad >= times).tolist())

    return blamed


def _on_device(window: JobWindow) -> np.ndarray:
    on_host = np.array([host for _, host in window.names.operators])
    return window.work[~on_host[window.work["operator"]]]
