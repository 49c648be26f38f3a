"""Which ranks need longer for their own work than their peers, or than they did before."""

from __future__ import annotations

import numpy as np

from msmon.insight.baselines import NEVER, SeriesSet
from msmon.insight.facts import Slow
from msmon.insight.hysteresis import Finding
from msmon.insight.own_work import OwnWork, typical_deviation
from msmon.records.batch import Column

LEAST_EFFECT = 0.10
LEAST_EFFECT_SIGMAS = 5.0
"""A rank is slow from the start if it needs at least so much more than its peers."""


CHANGED_EFFECT = 0.03
"""A rank that has become slower must also be slower than its peers, by so much. Otherwise it is
just no longer faster than one that was slow."""


class RankHistory:
    """The own work of each member, window after window. Belongs to one thread."""

    def __init__(self) -> None:
        self._series = SeriesSet(alike=True)
        self._findings: dict[int, Finding] = {}

    def slow_members(
        self, number: int, own: OwnWork, stages: OwnWork, positions: Column, learns: bool
    ) -> dict[int, Slow]:
        """Return member → how slow it is; ``learns`` is False in windows that are no example.

        A member without peers is compared with the other positions, and only a change counts:
        its position may just have more to do.
        """
        ratio, alone = _ratios(own, stages, positions)
        healthy = np.full(len(ratio), learns)
        healthy[[member for member, one in self._findings.items() if one.since is not None]] = False
        self._series.add(number, ratio, healthy)
        changed = self._series.changed_at()
        excess = np.nan_to_num(ratio - 1)
        shows = ~alone & (
            excess > max(LEAST_EFFECT, LEAST_EFFECT_SIGMAS * typical_deviation(ratio[~alone]))
        )
        found: dict[int, Slow] = {}
        watched = set(np.flatnonzero(shows | (changed != NEVER)).tolist()) | set(self._findings)
        for member in sorted(watched):
            effect = float(self._series.effect[member] if alone[member] else excess[member])
            finding = self._findings.setdefault(member, Finding())
            finding.add(number, bool(shows[member]), effect)
            if changed[member] != NEVER and effect > CHANGED_EFFECT:
                finding.begin(int(changed[member]), effect)
            if finding.since is None and not shows[member]:
                self._forget_if_quiet(member)
            elif finding.since is not None and effect > CHANGED_EFFECT:
                found[member] = Slow(effect, finding.since, bool(alone[member]))
        return found

    def _forget_if_quiet(self, member: int) -> None:
        if not self._findings[member].recently_shown:
            del self._findings[member]


def _ratios(own: OwnWork, stages: OwnWork, positions: Column) -> tuple[Column, Column]:
    """Return (ratio of each member, whether it has no peers)."""
    size = np.bincount(positions[positions >= 0], minlength=1)
    alone = (positions >= 0) & (size[np.maximum(positions, 0)] == 1)
    ratio = own.ratio.copy()
    if len(stages.ratio):
        ratio[alone] = stages.ratio[positions[alone]]
    return ratio, alone
