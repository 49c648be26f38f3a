"""What the judge knows when it looks for faults in a window."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from msmon.insight.baselines import MAD_TO_SIGMA
from msmon.insight.job import JobWindow, Member
from msmon.insight.lateness import Late
from msmon.insight.matching import Matched
from msmon.insight.own_work import OwnWork, Work, median_of_others
from msmon.insight.verdict import Fault
from msmon.insight.votes import Votes
from msmon.records.batch import Column

LEAST_IDLE_SHARE = 0.001
"""Idle times that differ by less than this share of a step are alike."""

FEW = 6
"""Of fewer members nobody can tell what is usual."""

Key = tuple[Fault, tuple[int, ...], int, tuple[int, ...]]
"""What makes a fault the same in another window: kind, members, group, position."""


@dataclass(frozen=True)
class Slow:
    """A member that needs longer for its own work: ``effect`` 0.42 is 42 % more."""

    effect: float
    since: int
    """Number of the first window that showed it."""
    against_itself: bool = False
    """It is slower than it was, and has no peers to compare with."""


@dataclass(frozen=True)
class Idle:
    """How long the devices idle, per step in ns.

    ``beyond_ns`` (shape (members,)) is how much longer than the others of the position,
    ``sigma_ns`` how much that usually is.
    """

    beyond_ns: Column
    sigma_ns: float


@dataclass(frozen=True)
class Facts:
    """One window, and what the last few say together."""

    number: int
    window: JobWindow
    positions: Column
    """Position of each member, -1 where it did nothing."""
    matched: Matched
    """The collectives of the groups that join ranks of one position only."""
    recent: tuple[Votes, ...]
    """The votes of the last windows, this one last."""
    late: tuple[Late, ...]
    slow: dict[int, Slow]
    work: Work
    own: OwnWork
    host: OwnWork
    stages: OwnWork
    """The positions against each other; one row per position."""

    @property
    def judges_lateness(self) -> bool:
        """Whether there are collectives from which lateness can be seen."""
        return any(votes.duration_ns for votes in self.recent) and bool(
            len(self.window.collectives)
        )

    @property
    def steps(self) -> int:
        """How many steps the window has."""
        return int(self.window.times["steps"].max(initial=0))

    @functools.cached_property
    def idle(self) -> Idle:
        """How long the devices idle against those of their position."""
        times = self.window.times
        per_step = np.full(len(self.positions), np.nan)
        per_step[times["member"]] = times["idle_ns"] / np.maximum(1, times["steps"])
        beyond = np.zeros(len(per_step))
        for position in np.unique(self.positions[self.positions >= 0]):
            mine = np.flatnonzero((self.positions == position) & ~np.isnan(per_step))
            if len(mine) > 1:
                beyond[mine] = per_step[mine] - median_of_others(per_step[mine, None])[:, 0]
        usual = MAD_TO_SIGMA * float(np.median(np.abs(beyond))) if len(beyond) >= FEW else 0.0
        return Idle(beyond, max(usual, LEAST_IDLE_SHARE * self.window.step_ns))

    @functools.cached_property
    def _per_group(self) -> tuple[Column, Column, Column]:
        """(traffic by group, its groups, communication of each member per step in ns)."""
        rows = self.window.traffic
        rows = rows.take(np.argsort(rows["group"], kind="stable"))
        lasted = rows["total_ns"].astype(np.float64) / max(1, self.steps)
        return rows, lasted, np.bincount(rows["member"], lasted, len(self.positions))

    def waited_elsewhere_ns(self, group: int) -> dict[int, float]:
        """Return how long the members of a group communicated in other groups, per step in ns."""
        rows, lasted, of_member = self._per_group
        begin, end = np.searchsorted(rows["group"], [group, group + 1]).tolist()
        members, place = np.unique(rows["member"][begin:end], return_inverse=True)
        elsewhere = of_member[members] - np.bincount(place, lasted[begin:end])
        return dict(zip(members.tolist(), elsewhere.tolist()))

    def member(self, number: int) -> Member:
        """Return who a number of the tables stands for."""
        return self.window.names.members[number]

    def peers_of(self, member: int) -> list[int]:
        """Return the other members of the same position."""
        same = (self.positions == self.positions[member]).nonzero()[0].tolist()
        return [other for other in same if other != member]


@dataclass(frozen=True)
class Candidate:
    """A fault that a window shows. It becomes a verdict when it stays.

    ``effect`` is 0.42 for 42 % more, ``cost`` a share of every step or None. ``ready_since`` is the
    window since which another rule has seen it, where that is enough to tell it at once.
    """

    fault: Fault
    members: tuple[int, ...]
    effect: float
    cost: float | None
    says: str
    """The sentence up to "since"."""
    group: int = -1
    position: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    waiting: int = 0
    to_trace: tuple[int, ...] = ()
    ready_since: int | None = None

    @property
    def key(self) -> Key:
        """What makes it the same fault in another window."""
        return self.fault, self.members, self.group, self.position
