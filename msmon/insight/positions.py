"""Which ranks hold the same position, so that their times may be compared.

The stages of a pipeline do different work: a last stage with the vocabulary's layer may need twice
as long, and nobody is slow. The ranks of one stage do the same, whatever part of the data or of
the tensors is theirs. Communication tells who is where:

- Ranks that send to each other are stages of one pipeline, so each holds a position of its own.
- A group in which no two ranks belong to one pipeline joins ranks of one position: the gradients
  of a stage, the parts of a tensor. A group that also joins stages (the whole job, the embedding
  of the first and the last stage) says nothing.

Where there is no such group, and within those that there are, ranks that call the same operators
equally often are peers.
"""

from __future__ import annotations

import numpy as np

from msmon.insight.job import JobWindow
from msmon.records.batch import Column
from msmon.records.collectives import is_point_to_point

SAME_OPERATORS = 0.9
"""Least share of common operators (Jaccard) of two peers."""

SAME_COUNT = 0.1
"""By how much the number of calls of two peers may differ."""


def positions_of(window: JobWindow, kernel_calls: Column) -> Column:
    """Return the position of each member, shape (members,), int64.

    ``kernel_calls`` (shape (members, kernels)) is how often each one called each kernel.

    Positions are numbered from 0 by their lowest rank. Members that did nothing have -1.
    """
    count = len(window.names.members)
    joined = _joined_by_groups(window, count)
    calls = np.hstack([kernel_calls, _operation_calls(window, count)])
    idle: Column = (calls > 0).sum(axis=1) == 0
    position = np.full(count, -1, np.int64)
    ranks = np.array([member.rank for member in window.names.members])
    found = 0
    for first in np.argsort(ranks, kind="stable").tolist():
        if position[first] >= 0 or idle[first]:
            continue
        near = np.flatnonzero((joined == joined[first]) & (position < 0))
        position[near[_alike(calls[near], calls[first])]] = found
        found += 1
    return position


def same_position_groups(window: JobWindow, positions: Column) -> Column:
    """Return which groups have members of one position only: bool, shape (groups,)."""
    group, member = window.memberships
    lowest = np.full(len(window.names.groups), np.iinfo(np.int64).max)
    highest = np.full(len(window.names.groups), -1)
    np.minimum.at(lowest, group, positions[member])
    np.maximum.at(highest, group, positions[member])
    same: Column = (lowest == highest) & ~_passes_on(window)
    return same


def _joined_by_groups(window: JobWindow, count: int) -> Column:
    """Return a label of each member: equal where groups say that the position is the same."""
    group, member = window.memberships
    passing = _passes_on(window)[group]
    pipeline = _components(group[passing], member[passing], count)
    joins_stages = _has_doubles(group, pipeline[member], len(window.names.groups))
    size = np.bincount(group, minlength=len(window.names.groups))
    usable = ~joins_stages[group] & ~passing & (size[group] > 1)
    if not usable.any():
        return np.zeros(count, np.int64)
    return _components(group[usable], member[usable], count)


def _passes_on(window: JobWindow) -> Column:
    """Return which groups carry sends and receives only: bool, shape (groups,)."""
    point_to_point = np.array([is_point_to_point(name) for name in window.names.operations], bool)
    traffic = window.traffic
    between_two = np.zeros(len(traffic), bool)
    if len(traffic):
        between_two = point_to_point[traffic["operation"]]
    total = np.bincount(traffic["group"], minlength=len(window.names.groups))
    passed = np.bincount(traffic["group"][between_two], minlength=len(window.names.groups))
    found: Column = (total > 0) & (passed == total)
    return found


def _components(group: Column, member: Column, count: int) -> Column:
    """Return the lowest member that each one is connected with over the groups, shape (count,)."""
    label = np.arange(count)
    if not len(group):
        return label
    groups = int(group.max()) + 1
    while True:
        lowest = np.full(groups, count)
        np.minimum.at(lowest, group, label[member])
        lowered = label.copy()
        np.minimum.at(lowered, member, lowest[group])
        if (lowered == label).all():
            return label
        label = lowered


def _has_doubles(group: Column, label: Column, groups: int) -> Column:
    """Return which groups have two members of one label: bool, shape (groups,)."""
    labels = int(label.max(initial=0)) + 1
    pairs = np.unique(group * labels + label) // labels
    found: Column = np.bincount(group, minlength=groups) > np.bincount(pairs, minlength=groups)
    return found


def _operation_calls(window: JobWindow, count: int) -> Column:
    """Return how often each member called each operation, shape (members, operations)."""
    traffic, operations = window.traffic, len(window.names.operations)
    key = traffic["member"].astype(np.int64) * operations + traffic["operation"]
    passed = np.bincount(key, traffic["count"], count * operations)
    return passed.reshape(count, operations)


def _alike(calls: Column, one: Column) -> Column:
    """Return which members (rows) call the same operators as ``one``, about equally often."""
    common = ((calls > 0) & (one > 0)).sum(axis=1)
    either = ((calls > 0) | (one > 0)).sum(axis=1)
    total = calls.sum(axis=1)
    similar: Column = (common >= SAME_OPERATORS * either) & (
        np.abs(total - one.sum()) <= SAME_COUNT * np.maximum(total, one.sum())
    )
    return similar
