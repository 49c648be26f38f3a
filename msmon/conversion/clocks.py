"""How far the clocks of hosts differ, measured by the collectives that their ranks share.

A trace of several hosts puts times of several clocks on one axis. A collective ends at nearly
the same moment on all its ranks, since each waits for the data of the others. So the difference
of the recorded ends is the difference of the clocks.

Example: ranks of node-1 and node-2 share group "dp". In 100 steps of four collectives node-2's
ends are 119.98 to 120.03 ms later. Then node-2's clock is 120.0 ms ahead.

Only collectives within steps are compared, and only in steps in which all ranks of the group
have as many. Without steps they could be counted from different moments on, and a rank with one
collective more would be compared with its neighbour's next. The middle value counts, so a few
wrong pairs don't matter. Where the differences scatter widely, the files are no common run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from msmon.conversion.sources.source import Source
from msmon.records.batch import Batch, Column
from msmon.records.durations import are_spans
from msmon.records.kinds import ActivityKind
from msmon.sessions import UNKNOWN_RANK
from msmon.sinks.sqlite.collectives import NUMBERS_PER_STEP, CollectiveNumbering
from msmon.sinks.sqlite.pairing import Step, unpaired_steps

FEWEST_COLLECTIVES = 5
"""Fewer shared ones are no measurement."""

WIDEST_SPREAD_NS = 10_000_000
"""The middle half of the differences must lie this close together."""

_COLLECTIVES = 1_000_000
_FEWEST_PER_RANK, _MOST_PER_RANK = 1000, 20_000
"""Collectives that are read of all ranks together, and of one."""

_KEPT_STEPS = 1 << 20

Ends = dict[Step, Column]
"""Group and step → ends of its collectives (ns, int64) in the order of their starts."""


@dataclass(frozen=True)
class ClockDifference:
    """The clock of ``host`` beside that of ``reference``."""

    host: str
    reference: str
    ahead_ns: int | None = None
    """Positive where the clock of ``host`` shows a later time; None: it can't be measured."""
    spread_ns: int = 0
    """Half of the compared collectives lie within this width around the difference."""
    collectives: int = 0
    """How many were compared."""


def hosts_of(sources: Iterable[Source]) -> list[str]:
    """Return the hosts that are known, that of the lowest rank first: the reference."""
    ranked = sorted((source for source in sources if source.process.host), key=_by_rank)
    return list(dict.fromkeys(source.process.host for source in ranked))


def measured_differences(sources: Sequence[Source]) -> list[ClockDifference]:
    """Return the difference of each host's clock to that of the first of :func:`hosts_of`.

    The sources are read, which each allows once. Of a rank with several sessions the newest
    counts. Hosts that share no group with the reference are compared by way of others. Raises
    OSError.
    """
    hosts = hosts_of(sources)
    newest = {
        source.process.rank: source
        for source in sorted(sources, key=lambda source: source.start_ns)
        if source.process.host and source.process.rank != UNKNOWN_RANK
    }
    limit = max(_FEWEST_PER_RANK, min(_MOST_PER_RANK, _COLLECTIVES // max(1, len(newest))))
    ranks = [(source.process.host, _ends_by_step(source, limit)) for source in newest.values()]
    unpaired = unpaired_steps(
        [{step: len(ends) for step, ends in item.items()} for _, item in ranks]
    )
    by_host: dict[str, Ends] = {host: {} for host in hosts}
    for host, ends in ranks:
        by_host[host].update({step: ends[step] for step in ends.keys() - unpaired})
    return _from_first(by_host)


def _from_first(by_host: Mapping[str, Ends]) -> list[ClockDifference]:
    """Go from the first host to those it can be compared with, and on from these."""
    reference, *others = by_host
    found = {reference: ClockDifference(reference, reference, 0)}
    reached = [reference]
    for known in reached:
        for host in others:
            direct = _compared(by_host[known], by_host[host]) if host not in found else None
            if direct is None:
                continue
            ahead_ns, spread_ns, count = direct
            way = found[known]
            found[host] = ClockDifference(
                host,
                reference,
                ahead_ns + (way.ahead_ns or 0),
                spread_ns + way.spread_ns,
                min(count, way.collectives or count),
            )
            reached.append(host)
    return [found.get(host, ClockDifference(host, reference)) for host in others]


def _compared(reference: Ends, other: Ends) -> tuple[int, int, int] | None:
    """Return by how much ``other`` is ahead (ns), the spread, and the number of collectives."""
    shared = reference.keys() & other.keys()
    if not shared:
        return None
    differences = np.concatenate([other[step] - reference[step] for step in shared])
    low, middle, high = np.sort(differences)[(np.array([1, 2, 3]) * (len(differences) - 1)) // 4]
    if len(differences) < FEWEST_COLLECTIVES or high - low > WIDEST_SPREAD_NS:
        return None
    return int(middle), int(high - low), len(differences)


def _ends_by_step(source: Source, limit: int) -> Ends:
    """Return the ends of at most some ``limit`` collectives of a source."""
    numbering = CollectiveNumbering(_KEPT_STEPS)
    collectives: list[Batch] = []
    for batch in source.batches(lambda size: None):
        if batch.kind is ActivityKind.Marker:
            numbering.add_markers(batch)
        elif batch.kind is ActivityKind.Communication:
            timed = are_spans(batch.records["start_ns"], batch.records["end_ns"])
            collectives.append(batch.select(timed))
            if sum(map(len, collectives)) >= limit:
                break
    return _numbered(numbering, collectives)


def _numbered(numbering: CollectiveNumbering, collectives: Sequence[Batch]) -> Ends:
    rows = sorted(
        (start_ns, end_ns, group)
        for batch in collectives
        for start_ns, end_ns, group in zip(
            batch.records["start_ns"].tolist(),
            batch.records["end_ns"].tolist(),
            batch.text("comm_name"),
        )
    )
    numbers = numbering.numbers((row[2] for row in rows), (row[0] for row in rows))
    ends: dict[Step, list[int]] = {}
    for (_, end_ns, group), number in zip(rows, numbers):
        ends.setdefault((group, number // NUMBERS_PER_STEP), []).append(end_ns)
    return {step: np.array(times, np.int64) for step, times in ends.items()}


def _by_rank(source: Source) -> tuple[bool, int]:
    return source.process.rank == UNKNOWN_RANK, source.process.rank
