"""The windows of all ranks of a job, put together slot by slot.

Each rank has windows of its own, which begin at moments of their own. A slot is a piece of the wall
clock, at least 10 s, and a little longer than the longest of these windows. A window belongs to the
slot in which its middle lies, so each rank has one in each slot, now and then two. A slot is
complete once every rank has told what comes after it. It is also given out without those that are
late, if the others are two slots further.

There is no clock here: the windows say what time it is, those of most ranks, since the clock of one
host may be wrong. So recorded windows can be put together as fast as they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from msmon.insight.job import (
    TIMES_DTYPE,
    TRAFFIC_DTYPE,
    WORK_DTYPE,
    JobNames,
    JobWindow,
    Member,
)
from msmon.live.collectives import StepCollectives
from msmon.live.columns import RankRows, rank_rows
from msmon.live.seen import SeenRank, SeenWindow
from msmon.records.batch import join_columns
from msmon.records.windows import Window

LEAST_SLOT_NS = 10_000_000_000
"""Shorter windows are put together: some ten steps are needed to tell a rank from its noise."""

LONGER = 1.02
"""A slot is so much longer than the windows, which are not all of one length."""

PATIENCE_SLOTS = 2
"""So many slots later a slot is given out without the ranks that have not told of it."""

FORGET_SLOTS = 30
"""A rank that has told nothing for so many slots is no longer missed, unless its job has it."""

MOST_MISSED = 100_000
"""Ranks that a job may say it has; a process may claim any number."""

MOST_NAMES = 20_000
"""Operators and groups that are remembered; then all is learnt anew, so that memory is bounded."""

SILENT = "no window of this time has come from it"
NOT_SEEN = "none of the daemons asked knows of it, or it is not monitored"


@dataclass
class _Rank:
    """What has come from one rank and is not given out yet."""

    process: SeenRank
    session: str = ""
    began_ns: int = 0
    """When its session began."""
    windows: list[Window] = field(default_factory=list)
    told_until_ns: int = 0
    """End of its newest window."""
    lengths_ns: tuple[int, int] = (0, 0)
    """Of its last two windows. A single long one, say while the process hung, changes no slot."""


class JobAssembly:
    """The windows of one job. Belongs to one thread.

    A process that takes the place of another one of the same rank, say after a restart, continues
    its rank.
    """

    def __init__(self, least_slot_ns: int = LEAST_SLOT_NS) -> None:
        self.names = JobNames()
        self._ranks: dict[int, _Rank] = {}
        self._least_slot_ns = self._slot_ns = least_slot_ns
        self._next_ns = 0
        """Begin of the slot that is given out next; 0 before the first window."""
        self.doubled: set[int] = set()
        """Ranks that two processes claim at once; the one that started last is judged."""
        self._collectives = StepCollectives()

    def add(self, seen: SeenWindow) -> None:
        """Take a window. One that is too late for its slot is left out.

        A process without a rank can't be compared with anybody, so its windows are left out too.
        """
        process, window = seen.process, seen.window
        if process.rank < 0:
            return
        rank = self._ranks.setdefault(process.rank, _Rank(process))
        if seen.began_ns < rank.began_ns:
            if process != rank.process and window.end_ns > rank.began_ns + self._slot_ns:
                self.doubled.add(process.rank)
            return
        rank.process, rank.began_ns = process, seen.began_ns
        if seen.session != rank.session:
            rank.session, rank.windows = seen.session, []
        rank.windows.append(window)
        rank.told_until_ns = max(rank.told_until_ns, window.end_ns)
        rank.lengths_ns = (rank.lengths_ns[1], window.end_ns - window.start_ns)

    def ready(self) -> Iterator[JobWindow]:
        """Yield the slots that are complete, in order; call after each round of windows."""
        if not self._next_ns:
            self._next_ns = self._first_slot_ns()
        if not self._next_ns:
            return
        while self._ranks and self._is_over(self._next_ns + self._slot_ns):
            window = self._slot(self._next_ns)
            self._next_ns += self._slot_ns
            lengths = [min(rank.lengths_ns) for rank in self._ranks.values()]
            longest_ns = max((round(LONGER * length) for length in lengths), default=0)
            self._slot_ns = max(self._least_slot_ns, longest_ns)
            if window is not None:
                yield window
            else:
                self._skip_to_the_next()
        if len(self.names.operators) + len(self.names.groups) > MOST_NAMES:
            self.names, self._collectives = JobNames(), StepCollectives()

    def _first_slot_ns(self) -> int:
        """Return where the first slot begins: when all ranks had begun, as far as they are known.

        0 while more of them may come.
        """
        starts = [rank.windows[0].start_ns for rank in self._ranks.values()]
        told = [rank.told_until_ns for rank in self._ranks.values()]
        wanted = max((rank.process.world_size for rank in self._ranks.values()), default=0)
        waited_ns = max(told, default=0) - min(starts, default=0)
        if not starts or (
            len(starts) < wanted and waited_ns < (1 + PATIENCE_SLOTS) * self._slot_ns
        ):
            return 0
        return max(starts)

    def _is_over(self, end_ns: int) -> bool:
        told = [rank.told_until_ns for rank in self._ranks.values()]
        return min(told) >= end_ns or median(told) >= end_ns + PATIENCE_SLOTS * self._slot_ns

    def _skip_to_the_next(self) -> None:
        """Go on with the next window that there is: nobody was monitored for a while."""
        starts = [rank.windows[0].start_ns for rank in self._ranks.values() if rank.windows]
        self._next_ns = max(self._next_ns, min(starts, default=0))

    def _slot(self, start_ns: int) -> JobWindow | None:
        end_ns = start_ns + self._slot_ns
        rows: dict[int, RankRows] = {}
        members: set[int] = set()
        for number, rank in list(self._ranks.items()):
            mine = [window for window in rank.windows if start_ns <= _middle(window) < end_ns]
            rank.windows = [window for window in rank.windows if _middle(window) >= end_ns]
            if mine:
                member = self.names.member(_member_of(rank.process))
                rows[number] = rank_rows(mine, self.names, member)
                self._collectives.add(member, self._session_key(number), rows[number].calls)
                members.add(member)
            elif rank.told_until_ns < end_ns - FORGET_SLOTS * self._slot_ns:
                del self._ranks[number]
        if not rows:
            return None
        first_step = max(-1, *(one.last_step - int(one.times["steps"][0]) for one in rows.values()))
        collectives, steps = self._collectives.take(members)
        return JobWindow(
            names=self.names,
            start_ns=start_ns,
            end_ns=end_ns,
            first_step=first_step,
            collective_steps=steps,
            work=join_columns([np.zeros(0, WORK_DTYPE), *(one.work for one in rows.values())]),
            traffic=join_columns(
                [np.zeros(0, TRAFFIC_DTYPE), *(one.traffic for one in rows.values())]
            ),
            collectives=collectives,
            times=join_columns([np.zeros(0, TIMES_DTYPE), *(one.times for one in rows.values())]),
            unseen=self._unseen(rows),
        )

    def _unseen(self, rows: dict[int, RankRows]) -> dict[int, str]:
        """Return which ranks of the job are missing in a slot, and why."""
        world = max(rank.process.world_size for rank in self._ranks.values())
        unseen = dict.fromkeys(range(min(world, MOST_MISSED)), NOT_SEEN)
        unseen.update(dict.fromkeys(self._ranks, SILENT))
        return {rank: reason for rank, reason in unseen.items() if rank not in rows}

    def _session_key(self, number: int) -> str:
        process = self._ranks[number].process
        return f"{process.host}:{process.pid}:{process.start_time}:{self._ranks[number].session}"


def _member_of(process: SeenRank) -> Member:
    return Member(process.rank, process.host, process.device)


def _middle(window: Window) -> int:
    return (window.start_ns + window.end_ns) // 2
