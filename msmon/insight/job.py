"""What is known of a job in one window: columns, one table per question.

A *member* is a rank of the job of which something is known. Tables name members, operators, groups
and operations by their places in ``JobNames``. A place never changes while a job is watched, so
rows of different windows can be compared.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from msmon.records.batch import Column

WORK_DTYPE = np.dtype(
    [
        ("member", "<u4"),
        ("operator", "<u4"),
        ("count", "<u8"),
        ("total_ns", "<u8"),
        ("median_ns", "<f8"),
        ("spread", "<f4"),
    ]
)
"""One row per (member, operator) that works and does not communicate: a kernel on the device, or
a call on the host. ``spread`` is (p75 - p25) / p50 of its durations within the window."""

TRAFFIC_DTYPE = np.dtype(
    [
        ("member", "<u4"),
        ("group", "<u4"),
        ("operation", "<u4"),
        ("count", "<u8"),
        ("total_ns", "<u8"),
    ]
)
"""One row per (member, group, operation): all communication of a window, waiting included."""

COLLECTIVE_DTYPE = np.dtype(
    [
        ("member", "<u4"),
        ("group", "<u4"),
        ("operation", "<u4"),
        ("size_class", "<u1"),
        ("place", "<u4"),
        ("step", "<i8"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
    ]
)
"""One row per collective and member. Rows of the same (step, group, operation, place) are one
collective, seen by several members; ``place`` counts within (step, group, operation). The size
class is log2 of its bytes, or 0 where that is unknown."""

TIMES_DTYPE = np.dtype(
    [
        ("member", "<u4"),
        ("steps", "<u4"),
        ("total_ns", "<i8"),
        ("busy_ns", "<i8"),
        ("exposed_ns", "<i8"),
        ("idle_ns", "<i8"),
    ]
)
"""One row per member: the steps that it completed and their time, and how its device spent it:
busy with kernels, with communication that no kernel hides, and with neither."""


@dataclass(frozen=True)
class Member:
    """A rank as a verdict names it; ``device`` is -1 and ``host`` empty where unknown."""

    rank: int
    host: str = ""
    device: int = -1


@dataclass
class JobNames:
    """The names behind the numbers of the tables. It only grows.

    Written by whoever makes the windows, on one thread.
    """

    members: list[Member] = field(default_factory=list)
    operators: list[tuple[str, bool]] = field(default_factory=list)
    """(name, whether it runs on the host)."""
    groups: list[str] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._members = _places(self.members)
        self._operators = _places(self.operators)
        self._groups = _places(self.groups)
        self._operations = _places(self.operations)

    def member(self, member: Member) -> int:
        """Return the place of a member; a new one is added at the end, as with all names."""
        return _place_of(member, self._members, self.members)

    def operator(self, name: str, on_host: bool) -> int:
        """Return the place of an operator."""
        return _place_of((name, on_host), self._operators, self.operators)

    def group(self, name: str) -> int:
        """Return the place of a group."""
        return _place_of(name, self._groups, self.groups)

    def operation(self, name: str) -> int:
        """Return the place of an operation."""
        return _place_of(name, self._operations, self.operations)


Name = TypeVar("Name", bound=Hashable)


def _places(names: list[Name]) -> dict[Name, int]:
    return {name: place for place, name in enumerate(names)}


def _place_of(name: Name, places: dict[Name, int], names: list[Name]) -> int:
    place = places.setdefault(name, len(names))
    if place == len(names):
        names.append(name)
    return place


@dataclass(frozen=True)
class JobWindow:
    """One window of a job: the same steps of all its ranks.

    Times are wall clock in ns. ``work`` has ``WORK_DTYPE``, ``traffic`` ``TRAFFIC_DTYPE``,
    ``collectives`` ``COLLECTIVE_DTYPE`` and ``times`` ``TIMES_DTYPE``, each of shape (n,).
    """

    names: JobNames
    start_ns: int
    end_ns: int
    first_step: int
    """Number of its first step; -1 where steps are unknown."""
    collective_steps: int
    """Steps whose collectives are in ``collectives``; they may be fewer than its steps."""
    work: Column
    traffic: Column
    collectives: Column
    times: Column
    unseen: dict[int, str] = field(default_factory=dict)
    """Rank → why nothing is known of it in this window."""

    @functools.cached_property
    def memberships(self) -> tuple[Column, Column]:
        """Who was seen in which group: (groups, members), both int64 of shape (n,), each pair once
        and sorted."""
        width = max(1, len(self.names.members))
        keys = np.unique(self.traffic["group"].astype(np.int64) * width + self.traffic["member"])
        return keys // width, keys % width

    def near(self, member: int) -> set[int]:
        """Return the other members that share a group with this one."""
        groups, members = self.memberships
        shared = np.isin(groups, groups[members == member])
        return set(members[shared].tolist()) - {member}

    @functools.cached_property
    def step_ns(self) -> float:
        """Median over the members of the mean time of a step, in ns; 0 where unknown."""
        counted = self.times[self.times["steps"] > 0]
        return float(np.median(counted["total_ns"] / counted["steps"])) if len(counted) else 0.0
