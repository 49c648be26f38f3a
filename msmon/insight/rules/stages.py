"""Which stage of a pipeline has more work than the others. No rank is to blame for that."""

from __future__ import annotations

import numpy as np

from msmon.insight.facts import Candidate, Facts
from msmon.insight.rank_history import LEAST_EFFECT, LEAST_EFFECT_SIGMAS
from msmon.insight.rules.amounts import window_ns
from msmon.insight.verdict import Fault
from msmon.insight.wording import ranks_text, times
from msmon.records.batch import Column


def stage_faults(facts: Facts) -> list[Candidate]:
    """Return the positions of which all ranks need longer than the other positions."""
    ratio = facts.stages.ratio - 1
    limit = max(LEAST_EFFECT, LEAST_EFFECT_SIGMAS * _typical(ratio))
    found = []
    for position in np.flatnonzero(ratio > limit).tolist():
        members = tuple(np.flatnonzero(facts.positions == position).tolist())
        is_told = len(members) == 1 and members[0] in facts.slow  # as a rank that has changed
        if not is_told:
            found.append(_stage_imbalance(facts, position, members))
    return found


def _stage_imbalance(facts: Facts, position: int, members: tuple[int, ...]) -> Candidate:
    factor = float(facts.stages.ratio[position])
    ranks = ranks_text(facts.member(member).rank for member in members)
    worst = [
        f"{facts.window.names.operators[operator][0]} {times(ratio)}"
        for operator, ratio in facts.stages.worst(position)
    ]
    blame = "no rank is to blame"
    if len(members) == 1:
        blame = "no other rank does the same work, so the rank may be slow as well"
    work_ns = float(np.median(facts.work.total_ns[list(members)].sum(axis=1)))
    whole_ns = window_ns(facts)
    return Candidate(
        Fault.STAGE_IMBALANCE,
        (),
        factor - 1,
        min(1.0, work_ns / whole_ns * (1 - 1 / factor)) if whole_ns else None,
        f"stage imbalance: stage {position + 1} of {len(facts.stages.ratio)} (ranks {ranks}) needs "
        f"{times(factor)} the time of the other stages for the same kernels; {blame}",
        position=members,
        evidence=(f"worst: {', '.join(worst)}",) if worst else (),
        to_trace=members[:1],
    )


def _typical(ratio: Column) -> float:
    """Return how much the middle half of the positions differ, which a single long one does not
    move."""
    known = np.sort(np.abs(ratio[~np.isnan(ratio)]))
    return float(known[: max(1, len(known) // 2)].max()) if len(known) > 2 else 0.0
