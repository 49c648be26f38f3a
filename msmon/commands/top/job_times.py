"""How an operator did before, and on the peers of a rank.

It comes from the windows of whole jobs that the verdicts come from, so the two never contradict
each other: peers are the ranks of the same position.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

import numpy as np

from msmon.insight.job import JobWindow
from msmon.insight.own_work import own_work, work_of
from msmon.insight.positions import positions_of
from msmon.records.batch import Column

MOST_WINDOWS = 30
FEWEST_WINDOWS = 3
"""Earlier windows without which nothing is said of a change."""

MOST_BYTES = 64 << 20
"""Of what is kept of earlier windows of a job; a job of very many ranks has a shorter past."""


@dataclass(frozen=True)
class Comparison:
    """A typical duration against the own past and against the peers; None where unknown."""

    past: Optional[float] = None
    peers: Optional[float] = None


@dataclass(frozen=True)
class JobTimes:
    """What was judged last of a job, and the durations in the windows before.

    ``medians`` has a matrix (members, operators) of float32 per window, the latest last, 0 where
    there is nothing. ``traffic`` has the table of communication of each.
    """

    window: JobWindow
    positions: Column
    own: Column
    """Own work of each member against its peers, NaN where unknown."""
    medians: tuple[Column, ...]
    traffic: tuple[Column, ...]

    def member(self, rank: int) -> Optional[int]:
        """Return the member that a rank was in the latest window."""
        for member in self.window.times["member"].tolist():
            if self.window.names.members[member].rank == rank:
                return int(member)
        return None

    def peers(self, member: int) -> list[int]:
        """Return the other members of the same position."""
        if self.positions[member] < 0:
            return []
        same = np.flatnonzero(self.positions == self.positions[member]).tolist()
        return [other for other in same if other != member]

    @functools.cached_property
    def own_work(self) -> dict[int, float]:
        """Return rank → own work against the peers, of those where it is known."""
        members = self.window.names.members
        present = self.window.times["member"].tolist()
        return {
            members[member].rank: float(self.own[member])
            for member in present
            if not np.isnan(self.own[member])
        }

    def operators(self, member: int) -> dict[tuple[str, bool], Comparison]:
        """Return (name, whether on the host) → how it compares."""
        latest = self.medians[-1]
        earlier = [_row(matrix, member, latest.shape[1]) for matrix in self.medians[:-1]]
        past = _against(latest[member], earlier, FEWEST_WINDOWS)
        peers = _against(latest[member], [latest[peer] for peer in self.peers(member)], 1)
        return {
            name: Comparison(past[place], peers[place])
            for place, name in enumerate(self.window.names.operators[: latest.shape[1]])
            if latest[member, place] > 0
        }

    def communication(self, member: int) -> dict[tuple[str, str], Comparison]:
        """Return (group, operation) → how the mean of its calls compares."""
        names = self.window.names
        earlier = [_means(table, [member])[member] for table in self.traffic[:-1]]
        latest = _means(self.traffic[-1], [member, *self.peers(member)])
        mine = latest.pop(member)
        found = {}
        for (group, operation), mean in mine.items():
            before = [means.get((group, operation)) for means in earlier]
            beside = [means.get((group, operation)) for means in latest.values()]
            found[names.groups[group], names.operations[operation]] = Comparison(
                _ratio(mean, before, FEWEST_WINDOWS), _ratio(mean, beside, 1)
            )
        return found


def next_times(before: Optional[JobTimes], window: JobWindow) -> JobTimes:
    """Return what is known after one more window of the job."""
    on_device, _ = work_of(window)
    positions = positions_of(window, on_device.count)
    rows = window.work
    medians = np.zeros((len(window.names.members), len(window.names.operators)), np.float32)
    medians[rows["member"], rows["operator"]] = rows["median_ns"]
    keeps = before is not None and before.window.names is window.names
    earlier = before.medians if before is not None and keeps else ()
    traffic = before.traffic if before is not None and keeps else ()
    most = MOST_BYTES // max(1, medians.nbytes + window.traffic.nbytes)
    kept = max(FEWEST_WINDOWS + 1, min(MOST_WINDOWS, most))
    return JobTimes(
        window,
        positions,
        own_work(on_device, positions).ratio,
        (*earlier, medians)[-kept:],
        (*traffic, window.traffic)[-kept:],
    )


def _row(matrix: Column, member: int, width: int) -> Column:
    """Return what a member did in an earlier window, when fewer names were known."""
    row = np.zeros(width, np.float32)
    if member < len(matrix):
        row[: matrix.shape[1]] = matrix[member]
    return row


def _against(latest: Column, others: list[Column], fewest: int) -> list[Optional[float]]:
    """Return the ratio of each value to the median of the others that are there."""
    if not others:
        return [None] * len(latest)
    table = np.stack(others).astype(np.float64)
    table[table <= 0] = np.nan
    count = (~np.isnan(table)).sum(axis=0)
    in_order = np.sort(table, axis=0)
    middle = in_order[np.maximum(count - 1, 0) // 2, np.arange(len(latest))]
    known = (count >= fewest) & (latest > 0)
    return [
        float(value / other) if is_known else None
        for value, other, is_known in zip(latest.tolist(), middle.tolist(), known.tolist())
    ]


def _means(traffic: Column, members: list[int]) -> dict[int, dict[tuple[int, int], float]]:
    """Return member → (group, operation) → mean duration of a call in ns."""
    found: dict[int, dict[tuple[int, int], float]] = {member: {} for member in members}
    for row in traffic[np.isin(traffic["member"], members)]:
        mean = float(row["total_ns"]) / max(1, int(row["count"]))
        found[int(row["member"])][int(row["group"]), int(row["operation"])] = mean
    return found


def _ratio(value: float, others: Iterable[Optional[float]], fewest: int) -> Optional[float]:
    known = sorted(other for other in others if other)
    if len(known) < fewest:
        return None
    return value / known[(len(known) - 1) // 2]
