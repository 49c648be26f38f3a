"""Which groups communicate over a slow link."""

from __future__ import annotations

from msmon.insight.facts import Candidate, Facts
from msmon.insight.links import SlowGroup, Transfers, common_members
from msmon.insight.verdict import Fault
from msmon.insight.wording import member_text, ranks_text, times


class Links:
    """Finds slow links, window after window. Belongs to one thread."""

    def __init__(self) -> None:
        self._transfers = Transfers()

    def faults(self, facts: Facts, culprits: set[int]) -> list[Candidate]:
        """Return the groups that need too long for a collective, without those of a culprit."""
        slow = [
            one
            for one in self._transfers.slow_groups(facts.number, facts.window, facts.matched)
            if facts.window.step_ns and not culprits.intersection(one.members)
        ]
        common = common_members(slow)
        return [_slow_link(facts, one, common) for one in slow]


def _slow_link(facts: Facts, one: SlowGroup, common: list[int]) -> Candidate:
    group = facts.window.names.groups[one.group]
    ranks = ranks_text(facts.member(member).rank for member in one.members)
    evidence = [f"ranks of the group: {ranks}"]
    if len(common) == 1:
        evidence.append(f"{member_text(facts.member(common[0]))} is in all slow groups: its NIC?")
    than = "it needed before" if one.before else "the time of other groups"
    return Candidate(
        Fault.SLOW_LINK,
        (),
        one.factor - 1,
        one.excess_ns / facts.window.step_ns,
        f"slow link: group {group} needs {times(one.factor)} {than} for the same collectives",
        group=one.group,
        evidence=tuple(evidence),
        to_trace=one.members[:2],
    )
