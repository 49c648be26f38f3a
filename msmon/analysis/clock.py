"""Where the windows and the steps of one rank lie in its own time."""

from __future__ import annotations

import numpy as np

from msmon.analysis.plan import Plan
from msmon.analysis.steps import Steps
from msmon.records.batch import Column


class RankClock:
    """The windows of a plan in the time of one rank; ``steps`` is None where it has none."""

    def __init__(self, plan: Plan, steps: Steps | None) -> None:
        self._steps = steps
        if steps is None:
            by_time = not len(plan.numbers)
            self._edges = plan.bounds.astype(np.int64) if by_time else np.zeros(0, np.int64)
            return
        self._place = np.searchsorted(plan.numbers, steps.numbers)
        self._place[~np.isin(steps.numbers, plan.numbers)] = -1
        self._window = np.searchsorted(plan.bounds, self._place, side="right") - 1
        self._window[(self._place < 0) | (self._place >= plan.bounds[-1])] = -1
        self._begins = plan.bounds

    def windows_of(self, rows: Column) -> Column:
        """Return the window of each record, by its start; -1 where it is in none."""
        if self._steps is None:
            places = np.searchsorted(self._edges, rows["start_ns"], side="right") - 1
            return np.where(places < len(self._edges) - 1, places, -1)
        step = self.step_of(rows)
        found: Column = np.where(step >= 0, self._window[np.maximum(step, 0)], -1)
        return found

    def step_of(self, rows: Column) -> Column:
        """Return the place of each record's step in ``steps``; -1 before the first one."""
        assert self._steps is not None
        place = np.searchsorted(self._steps.start_ns, rows["start_ns"], side="right") - 1
        inside = (place >= 0) & (rows["start_ns"] < self._steps.end_ns[np.maximum(place, 0)])
        found: Column = np.where(inside, place, -1)
        return found

    def span(self, number: int) -> tuple[int, int] | None:
        """Return start and end of a window in ns; None where the rank has no step in it."""
        if self._steps is None:
            if number + 1 >= len(self._edges):
                return None
            return int(self._edges[number]), int(self._edges[number + 1])
        mine = np.flatnonzero(self._window == number)
        if not len(mine):
            return None
        return int(self._steps.start_ns[mine].min()), int(self._steps.end_ns[mine].max())

    def steps_in(self, number: int) -> tuple[int, int]:
        """Return how many steps of a window the rank has, and their time in ns."""
        if self._steps is None:
            return 0, 0
        mine = self._window == number
        lasted = self._steps.end_ns[mine] - self._steps.start_ns[mine]
        return int(mine.sum()), int(lasted.sum())

    def numbers_of(self, rows: Column, number: int, first: int) -> Column:
        """Return the step number of each record that is in the ``first`` steps of a window, else
        -1."""
        if self._steps is None:
            return np.full(len(rows), -1)
        step = self.step_of(rows)
        place = self._place[np.maximum(step, 0)]
        inside = (step >= 0) & (place < self._begins[number] + first)
        found: Column = np.where(inside, self._steps.numbers[np.maximum(step, 0)], -1)
        return found
