"""The collectives of one step, of all ranks together.

Each rank tells of some steps only, and at another moment than the others. A step is given out once
every rank has told of it or of a later one. The ranks number their collectives alike then, see
:mod:`msmon.live.alignment`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from msmon.insight.job import COLLECTIVE_DTYPE
from msmon.live.alignment import Calls, GroupAlignment
from msmon.live.columns import SIZE_CLASSES
from msmon.records.batch import Column, join_columns

PATIENCE_SLOTS = 3
"""So many slots after the first rank has told of a step it is given out without the others."""

NEARLY_ALL = 0.9
"""A step counts if so many of the members have told of it: a collective is compared only where all
members of its group have."""

MOST_STEPS = 64
"""Steps that wait for ranks; of more the oldest ones are left out."""

UNKNOWN_STEP = 0
"""Moment of collectives from an agent that tells none."""


@dataclass
class _Step:
    """What has come of one step."""

    slots: int = 0
    """Slots since the first rank told of it."""
    calls: dict[int, tuple[str, Column]] = field(default_factory=dict)
    """Member → (its session, its collectives)."""


class StepCollectives:
    """Belongs to one thread."""

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}
        """By the moment that stands for the step on all ranks."""
        self._newest: dict[int, int] = {}
        """Member → the newest step that it has told of."""
        self._groups: dict[int, GroupAlignment] = {}

    def add(self, member: int, session: str, calls: Column) -> None:
        """Take what a member has told of, dtype ``CALL_DTYPE``; ``session`` is unique."""
        for step in np.unique(calls["step"]).tolist():
            mine = calls[calls["step"] == step]
            self._steps.setdefault(step, _Step()).calls[member] = session, mine
            self._newest[member] = step
        while len(self._steps) > MOST_STEPS:
            del self._steps[next(iter(self._steps))]

    def take(self, members: set[int]) -> tuple[Column, int]:
        """Return (collectives of the steps that are complete, how many steps these are).

        ``members`` are those of this slot; nobody waits for others. The collectives have
        ``COLLECTIVE_DTYPE``. Those without a known step count as no step.
        """
        ready = {
            step: self._steps.pop(step)
            for step, told in list(self._steps.items())
            if self._is_ready(step, told, members)
        }
        for told in self._steps.values():
            told.slots += 1
        parts = [self._numbered_alike(told) for told in ready.values()]
        steps = sum(
            step != UNKNOWN_STEP and len(told.calls) >= NEARLY_ALL * len(members)
            for step, told in ready.items()
        )
        return join_columns([np.zeros(0, COLLECTIVE_DTYPE), *parts]), steps

    def _is_ready(self, step: int, told: _Step, members: set[int]) -> bool:
        if step == UNKNOWN_STEP or told.slots >= PATIENCE_SLOTS:
            return True
        return all(self._newest.get(member, step) >= step for member in members)

    def _numbered_alike(self, step: _Step) -> Column:
        parts = list(step.calls.items())
        together = np.concatenate([calls for _, (_, calls) in parts])
        member = np.repeat([who for who, _ in parts], [len(calls) for _, (_, calls) in parts])
        sessions = {who: session for who, (session, _) in parts}
        order = np.lexsort((together["number"], member, together["group"]))
        together, member = together[order], member[order]
        begins = np.flatnonzero(np.diff(together["group"].astype(np.int64), prepend=-1)).tolist()
        groups = [
            self._group(together[mine], member[mine], sessions)
            for mine in map(slice, begins, [*begins[1:], len(together)])
        ]
        return join_columns([np.zeros(0, COLLECTIVE_DTYPE), *groups])

    def _group(self, calls: Column, member: Column, sessions: dict[int, str]) -> Column:
        """Return the rows of one group; ``calls`` are sorted by member and number."""
        alignment = self._groups.setdefault(int(calls["group"][0]), GroupAlignment())
        begins = np.flatnonzero(np.diff(member, prepend=-1)).tolist()
        runs = dict(zip(member[begins].tolist(), map(slice, begins, [*begins[1:], len(calls)])))
        what = calls["operation"].astype(np.int64) * SIZE_CLASSES + calls["size_class"]
        shifts = alignment.shifts(
            {
                sessions[who]: Calls(calls["number"][mine], what[mine], calls["end_ns"][mine])
                for who, mine in runs.items()
            }
        )
        known = {who: mine for who, mine in runs.items() if sessions[who] in shifts}
        rows = [np.arange(mine.start, mine.stop) for mine in known.values()]
        number = [calls["number"][mine] + shifts[sessions[who]] for who, mine in known.items()]
        return _rows(calls, member, join_columns([np.zeros(0, np.int64), *rows]), number)


def _rows(calls: Column, member: Column, rows: Column, number: list[Column]) -> Column:
    calls = calls[rows]
    table = np.zeros(len(calls), COLLECTIVE_DTYPE)
    table["member"] = member[rows]
    for name in ("group", "operation", "size_class", "step", "start_ns", "end_ns"):
        table[name] = calls[name]
    if len(calls):
        table["place"] = _place_of_operation(calls, np.concatenate(number))
    return table


def _place_of_operation(calls: Column, number: Column) -> Column:
    """Return the place of each collective among those of its operation in the step.

    So it can be compared with the collectives of other groups.
    """
    order = np.lexsort((number, calls["operation"]))
    number, operation = number[order], calls["operation"][order]
    new_operation = np.append(True, operation[1:] != operation[:-1])
    counted = np.cumsum(new_operation | np.append(True, number[1:] != number[:-1]))
    first = np.flatnonzero(new_operation)
    place = np.empty(len(calls), np.int64)
    place[order] = counted - np.repeat(counted[first], np.diff(np.append(first, len(calls))))
    return place
