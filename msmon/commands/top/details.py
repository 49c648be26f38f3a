"""The rows below a job: its groups, the operators of a rank, the durations of an operator.

They are made when they are looked at, from a model that does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Optional

import numpy as np

from msmon.commands.top.job_times import Comparison, JobTimes
from msmon.commands.top.model import (
    ALL_RANKS,
    BandRow,
    GroupRow,
    Model,
    OperatorKey,
    OperatorRow,
    RankKey,
    RankRow,
    RankWindow,
)
from msmon.records.batch import Column
from msmon.records.collectives import COLLECTIVE_KINDS
from msmon.records.kinds import ActivityKind
from msmon.records.layout import API_KINDS
from msmon.records.windows import Window, bucket_bounds_ns, operator_rows, quantile_ns

MOST_BANDS = 400


def group_rows(model: Model, job: str) -> list[GroupRow]:
    """Return the groups of a job, first the one of all ranks."""
    ranks = tuple(row.rank for row in model.ranks.get(job, ()) if row.rank is not None)
    whole = GroupRow(
        ALL_RANKS, "all ranks", ranks, (), None, None, None, None, None, ""
    )  # fmt: skip
    times = model.times.get(job)
    if times is None:
        return [whole]
    blamed = {
        one.verdict.group: str(one.verdict.kind)
        for one in model.verdicts
        if one.job == job and one.verdict.group
    }
    traffic = times.window.traffic
    order = np.argsort(traffic["group"], kind="stable")
    begins = np.flatnonzero(np.diff(traffic["group"][order].astype(np.int64), prepend=-1))
    parts = np.split(traffic[order], begins[1:]) if len(traffic) else []
    found = [_group_row(part, times, blamed) for part in parts]
    return [whole, *sorted(found, key=lambda row: row.ranks)]


def _group_row(traffic: Column, times: JobTimes, blamed: dict[str, str]) -> GroupRow:
    names = times.window.names
    members, place = np.unique(traffic["member"], return_inverse=True)
    count = np.bincount(place, traffic["count"].astype(np.float64))
    total_ns = np.bincount(place, traffic["total_ns"].astype(np.float64))
    mean_ns = total_ns / np.maximum(count, 1)
    shortest = int(np.argmin(mean_ns))
    ranks = [names.members[member].rank for member in members.tolist()]
    own = times.window.times[np.isin(times.window.times["member"], members)]
    steps, length_ns = own["steps"], own["total_ns"]
    known = len(own) == len(members)
    name = names.groups[int(traffic["group"][0])]
    operations = [names.operations[one] for one in np.unique(traffic["operation"]).tolist()]
    return GroupRow(
        key=name,
        name=name,
        ranks=tuple(sorted(ranks)),
        operations=tuple(sorted(operations)),
        per_step=float(np.median(count / steps)) if known and steps.all() else None,
        mean_ns=float(np.median(mean_ns)),
        shortest_ns=float(mean_ns[shortest]) if len(ranks) > 1 else None,
        last_rank=ranks[shortest] if len(ranks) > 1 else None,
        share=float(np.median(total_ns / length_ns)) if known and length_ns.all() else None,
        verdict=blamed.get(name, ""),
    )


def ranks_of(model: Model, job: str, group: str) -> list[RankRow]:
    """Return the ranks of a group of a job."""
    rows = list(model.ranks.get(job, ()))
    times = model.times.get(job)
    if group == ALL_RANKS or times is None:
        return rows
    names = times.window.names
    if group not in names.groups:
        return []
    groups, members = times.window.memberships
    place = names.group(group)
    ranks = {names.members[member].rank for member in members[groups == place].tolist()}
    return [row for row in rows if row.rank in ranks]


def operators_of(model: Model, job: str, rank: RankKey) -> list[OperatorRow]:
    """Return the operators of a rank, those with the longest total first."""
    last = model.windows.get(rank)
    if last is None:
        return []
    window = last.window
    length_ns = window.end_ns - window.start_ns
    times = model.times.get(job)
    member = times.member(last.process.rank) if times is not None else None
    work: dict[tuple[str, bool], Comparison] = {}
    communication: dict[tuple[str, str], Comparison] = {}
    if times is not None and member is not None:
        work, communication = times.operators(member), times.communication(member)
    rows = []
    for row in sorted(operator_rows(window), key=lambda row: -row.total_ns):
        if row.kind in COLLECTIVE_KINDS:
            compared = communication.get((row.domain, row.name), Comparison())
        else:
            compared = work.get((row.name, row.kind in API_KINDS), Comparison())
        filled = bool(row.count)
        rows.append(
            OperatorRow(
                OperatorKey(row.kind.name, row.device_id, row.name, row.domain, row.size_class),
                row.name,
                row.kind.name,
                row.domain,
                1 << row.size_class if row.size_class else None,
                row.count,
                row.count / window.steps if window.steps else None,
                row.total_ns,
                row.total_ns / length_ns if length_ns > 0 else None,
                quantile_ns(window, row.index, 0.5) if filled else None,
                quantile_ns(window, row.index, 0.95) if filled else None,
                row.max_ns,
                compared.past,
                compared.peers,
            )
        )
    return rows


def bands_of(model: Model, job: str, rank: RankKey, operator: OperatorKey) -> list[BandRow]:
    """Return the histogram of an operator of a rank, beside that of all its peers together."""
    last = model.windows.get(rank)
    mine = _histogram(last.window, operator) if last is not None else {}
    if not mine:
        return []
    others: dict[int, int] = {}
    for peer in peers_of(model, job, rank):
        for bucket, count in _histogram(peer.window, operator, any_device=True).items():
            others[bucket] = others.get(bucket, 0) + count
    total, of_others = sum(mine.values()), sum(others.values())
    buckets = [*mine, *others]
    if max(buckets) - min(buckets) < MOST_BANDS:
        buckets = list(range(min(buckets), max(buckets) + 1))
    rows = []
    for bucket in sorted(set(buckets)):
        low_ns, high_ns = bucket_bounds_ns(bucket)
        count = mine.get(bucket, 0)
        peers = others.get(bucket, 0) / of_others if of_others else None
        rows.append(BandRow(bucket, low_ns, high_ns, count, count / total, peers))
    return rows


def peers_of(model: Model, job: str, rank: RankKey) -> list[RankWindow]:
    """Return the newest windows of the ranks that do the same work."""
    times, own = model.times.get(job), model.windows.get(rank)
    member = times.member(own.process.rank) if times is not None and own is not None else None
    if times is None or member is None:
        return []
    ranks = {times.window.names.members[peer].rank for peer in times.peers(member)}
    keys = (row.key for row in model.ranks.get(job, ()) if row.rank in ranks)
    return [model.windows[key] for key in keys if key in model.windows]


def operator_row(rows: Iterable[OperatorRow], key: OperatorKey) -> Optional[OperatorRow]:
    """Return the row of an operator, if it is still there."""
    return next((row for row in rows if row.key == key), None)


def _histogram(window: Window, key: OperatorKey, any_device: bool = False) -> dict[int, int]:
    """Return bucket → count of an operator, also of other devices than its own if wanted."""
    rows = _rows_of(window, key, any_device)
    filled = window.buckets[np.isin(window.buckets["operator"], rows)]
    found: dict[int, int] = {}
    for bucket, count in zip(filled["bucket"].tolist(), filled["count"].tolist()):
        found[bucket] = found.get(bucket, 0) + count
    return found


def _rows_of(window: Window, key: OperatorKey, any_device: bool) -> Sequence[int]:
    names = window.names
    if key.name not in names or key.domain not in names:
        return []
    operators = window.operators
    same = (
        (operators["kind"] == int(ActivityKind[key.kind]))
        & (operators["name"] == names.index(key.name))
        & (operators["domain"] == names.index(key.domain))
        & (operators["size_class"] == key.size_class)
    )
    if not any_device:
        same &= operators["device_id"] == key.device
    rows: list[int] = np.flatnonzero(same).tolist()
    return rows
