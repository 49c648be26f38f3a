"""Faults of the whole job, for which no rank is to blame."""

from __future__ import annotations

import numpy as np

from msmon.insight.baselines import NEVER, SeriesSet
from msmon.insight.facts import Candidate, Facts
from msmon.insight.verdict import Fault
from msmon.insight.wording import percent, times
from msmon.records.batch import Column

MUCH_WAITING = 0.05
UNEVEN_SPREAD = 0.1

EXPLAINED = 0.3
"""Other faults explain that steps take longer if they cost this share of it."""

EARLIER = 3
"""Windows by which another fault may be told before steps seem to take longer."""

PATIENCE = 4
MOST_PATIENCE = 8
"""Windows after a change of the step time in which a rank may still turn out to be its cause; the
second while anybody is late."""


def uneven_data(facts: Facts, blamed: bool) -> list[Candidate]:
    """Return the finding that all wait and nobody in particular is late."""
    duration_ns = sum(votes.duration_ns for votes in facts.recent)
    if blamed or not duration_ns or any(one.is_sure for one in facts.late):
        return []
    waiting = sum(votes.wait_ns for votes in facts.recent) / duration_ns
    spread = _spread_within(facts)
    if waiting < MUCH_WAITING or spread <= UNEVEN_SPREAD:
        return []
    return [
        Candidate(
            Fault.UNEVEN_DATA,
            (),
            waiting,
            waiting,
            f"uneven data: the ranks wait for each other in turn, {percent(waiting)} of every "
            "step; nobody is to blame",
            evidence=(
                f"the same kernels of one rank differ by {percent(spread)} (quartiles)",
                "no rank is late more often than chance makes it",
            ),
        )
    ]


class WholeJob:
    """Follows the time of a step, and of each operator over all ranks. Belongs to one thread."""

    def __init__(self) -> None:
        self._steps = SeriesSet()
        self._operators = SeriesSet()
        self._shown_since = NEVER

    def degraded(self, facts: Facts, lost: list[tuple[int, float]]) -> list[Candidate]:
        """Return the finding that all of the job has become slower, with nobody to blame.

        ``lost`` is (window in which it was told, share of a step) of the faults that are found
        already. Those that were told long before do not explain a change.
        """
        step_ns = facts.window.step_ns
        learns = facts.number > 0
        self._steps.add(facts.number, np.array([step_ns or np.nan]), np.array([learns]))
        level = np.full(len(facts.window.names.operators), np.nan)
        level[facts.work.operators] = _column_medians(facts.work.median_ns)
        self._operators.add(facts.number, level, np.full(len(level), learns))
        since = int(self._steps.changed_at()[0])
        more = float(self._steps.effect[0] / (1 + self._steps.effect[0]))
        explained = max((cost for at, cost in lost if at >= since - EARLIER), default=0.0)
        if since == NEVER or explained >= EXPLAINED * more:
            self._shown_since = NEVER
            return []
        if self._shown_since == NEVER:
            self._shown_since = facts.number
        patience = MOST_PATIENCE if facts.late else PATIENCE
        if facts.number < self._shown_since + patience:
            return []
        return [self._slower(facts, since)]

    def _slower(self, facts: Facts, since: int) -> Candidate:
        effect = float(self._steps.effect[0])
        slower = np.flatnonzero(self._operators.changed_at() != NEVER)
        by_effect = slower[np.argsort(-self._operators.effect[slower])][:3].tolist()
        worst = ", ".join(
            f"{facts.window.names.operators[place][0]} {times(1 + self._operators.effect[place])}"
            for place in by_effect
        )
        where = f"slower on all ranks: {worst}" if worst else "no operator has become slower"
        return Candidate(
            Fault.DEGRADED,
            (),
            effect,
            effect / (1 + effect),
            f"degraded: a step takes {times(1 + effect)} as long as before",
            evidence=(where,),
            ready_since=since,
        )


def _spread_within(facts: Facts) -> float:
    """Return the typical spread of one operator within one rank, weighted by time."""
    weight = facts.work.total_ns
    total = weight.sum()
    return float((weight * facts.work.spread).sum() / total) if total else 0.0


def _column_medians(values: Column) -> Column:
    """Return the median of each column without its zeros; NaN for a column of nothing else."""
    medians = np.full(values.shape[1], np.nan)
    zeros = (values == 0).sum(axis=0)
    for many in np.unique(zeros).tolist():  # as many as there are kinds of stages
        columns = np.flatnonzero(zeros == many)
        if many < len(values):
            middle = many + (len(values) - many - 1) // 2
            medians[columns] = np.partition(values[:, columns], middle, axis=0)[middle]
    return medians
