"""The judge: windows of a job in, verdicts out.

It keeps what must be remembered from window to window: what is normal for each rank and for the
job, which findings hold, and the votes of the last windows. It can be rebuilt from some forty
windows, so nobody needs to save it.
"""

from __future__ import annotations

import dataclasses
from collections import deque

import numpy as np

from msmon.insight.facts import Candidate, Facts, Key
from msmon.insight.hysteresis import Finding
from msmon.insight.job import JobWindow
from msmon.insight.lateness import REMEMBERED, late_members
from msmon.insight.matching import matched_collectives
from msmon.insight.own_work import between_positions, own_work, work_of
from msmon.insight.positions import positions_of, same_position_groups
from msmon.insight.rank_history import RankHistory
from msmon.insight.rules.links import Links
from msmon.insight.rules.ranks import rank_faults
from msmon.insight.rules.stages import stage_faults
from msmon.insight.rules.whole_job import WholeJob, uneven_data
from msmon.insight.verdict import Abstained, Fault, Judgement, Verdict
from msmon.insight.votes import Votes, votes_of
from msmon.insight.wording import cost_text, since_text, trace_command

REMEMBERED_WINDOWS = 4096
"""Windows whose time is kept, for "since"."""


class Judge:
    """Judges one job. Belongs to one thread; give it the windows in their order."""

    def __init__(self) -> None:
        self._number = -1
        self._moments: dict[int, tuple[int, int]] = {}
        self._recent: deque[Votes] = deque(maxlen=REMEMBERED)
        self._ranks = RankHistory()
        self._links = Links()
        self._whole = WholeJob()
        self._findings: dict[Key, Finding] = {}
        self._latest: dict[Key, Candidate] = {}
        self._told: dict[Key, Verdict] = {}

    def add(self, window: JobWindow) -> Judgement:
        """Judge a window."""
        self._number += 1
        self._moments[self._number] = (window.start_ns, window.first_step)
        self._moments.pop(self._number - REMEMBERED_WINDOWS, None)
        facts = self._facts(window)
        ranks, abstained = rank_faults(facts)
        culprits = {member for candidate in ranks for member in candidate.members}
        candidates = ranks + stage_faults(facts)
        candidates += self._links.faults(facts, culprits)
        candidates += uneven_data(facts, blamed=bool(culprits))
        candidates += self._whole.degraded(facts, self._lost(candidates))
        return self._told_of(facts, candidates, [*abstained, *_unseen(facts)])

    def _lost(self, candidates: list[Candidate]) -> list[tuple[int, float]]:
        """Return (window in which it was told, share of a step that is lost) of each fault that is
        found; this window for those that will be told now."""
        found = [
            (self._findings[key].told, self._latest[key].cost)
            for key in self._told
            if key[0] is not Fault.DEGRADED
        ]
        found += [(self._number, one.cost) for one in candidates if one.ready_since is not None]
        return [(told, 1.0 if cost is None else cost) for told, cost in found]

    def _facts(self, window: JobWindow) -> Facts:
        work, on_host = work_of(window)
        positions = positions_of(window, work.count)
        matched = matched_collectives(window, same_position_groups(window, positions))
        self._recent.append(votes_of(window, matched))
        recent = tuple(self._recent)
        own, stages = own_work(work, positions), between_positions(work, positions)
        slow = self._ranks.slow_members(self._number, own, stages, positions, self._number > 0)
        host = own_work(on_host, positions)
        late = tuple(late_members(recent))
        return Facts(
            self._number, window, positions, matched, recent, late, slow, work, own, host, stages
        )

    def _told_of(
        self, facts: Facts, candidates: list[Candidate], abstained: list[Abstained]
    ) -> Judgement:
        shown = {candidate.key: candidate for candidate in candidates}
        for key, candidate in shown.items():
            if key not in self._latest or self._findings[key].holds(candidate.effect):
                self._latest[key] = candidate  # what fades is told as it was
        for key in [*shown, *(key for key in self._findings if key not in shown)]:
            self._follow(key, shown.get(key))
        told = {
            key: self._verdict(facts, self._latest[key], finding)
            for key, finding in self._findings.items()
            if finding.since is not None
        }
        begun = tuple(verdict for key, verdict in told.items() if key not in self._told)
        cleared = tuple(
            dataclasses.replace(verdict, until_ns=self._end_ns(key, facts.window))
            for key, verdict in self._told.items()
            if key not in told
        )
        self._forget_ended()
        self._told = told
        by_cost = sorted(told.values(), key=lambda one: -(one.cost_percent or 0.0))
        unmatched = facts.recent[-1].left_out
        return Judgement(tuple(by_cost), begun, cleared, tuple(abstained), unmatched)

    def _end_ns(self, key: Key, window: JobWindow) -> int:
        """Return when a finding was over: at the first of the windows that no longer showed it."""
        until = self._findings[key].until
        return self._moments.get(-1 if until is None else until, (window.start_ns, -1))[0]

    def _forget_ended(self) -> None:
        for key, finding in list(self._findings.items()):
            if finding.since is None and not finding.recently_shown:
                del self._findings[key]
                self._latest.pop(key, None)

    def _follow(self, key: Key, candidate: Candidate | None) -> None:
        finding = self._findings.setdefault(key, Finding())
        effect = candidate.effect if candidate is not None else 0.0
        finding.add(self._number, candidate is not None, effect)
        if candidate is not None and candidate.ready_since is not None:
            finding.begin(candidate.ready_since, effect)

    def _verdict(self, facts: Facts, candidate: Candidate, finding: Finding) -> Verdict:
        assert finding.since is not None
        since_ns, since_step = self._moments.get(finding.since, (facts.window.start_ns, -1))
        names = facts.window.names
        cost = cost_text(candidate.cost, candidate.waiting)
        trace = [facts.member(member) for member in candidate.to_trace]
        return Verdict(
            kind=candidate.fault,
            ranks=tuple(sorted(facts.member(member).rank for member in candidate.members)),
            group=names.groups[candidate.group] if candidate.group >= 0 else "",
            position=tuple(sorted(facts.member(member).rank for member in candidate.position)),
            since_ns=since_ns,
            since_step=since_step,
            effect=round(1 + candidate.effect, 4),
            cost_percent=None if candidate.cost is None else round(candidate.cost * 100, 2),
            evidence=candidate.evidence,
            text=f"{candidate.says} {since_text(since_ns, since_step)}. {cost}",
            next=trace_command(trace) if trace else "msmon status",
            to_trace=tuple(member.rank for member in trace),
        )


def _unseen(facts: Facts) -> list[Abstained]:
    """Return whom nothing can be said of, and why."""
    window = facts.window
    reasons: dict[str, list[int]] = {}
    for rank, reason in window.unseen.items():
        reasons.setdefault(reason, []).append(rank)
    untold = np.isnan(facts.own.ratio)
    for member in np.flatnonzero(untold & (facts.positions >= 0)).tolist():
        if facts.peers_of(member):
            reason = "too few calls of any operator to compare"
        else:
            reason = "no other rank holds its position; only a change would be seen"
        reasons.setdefault(reason, []).append(facts.member(member).rank)
    return [Abstained(tuple(sorted(ranks)), reason) for reason, ranks in reasons.items()]
