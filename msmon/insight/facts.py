"""What the judge knows when it looks for faults in a window."""

from __future__ import annotations

from dataclasses import dataclass

from msmon.insight.job import JobWindow, Member
from msmon.insight.lateness import Late, Votes
from msmon.insight.matching import Matched
from msmon.insight.own_work import OwnWork, Work
from msmon.insight.verdict import Fault
from msmon.records.batch import Column

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
