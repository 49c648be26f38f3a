"""What several rules reckon with: what a fault costs, and the words for it."""

from __future__ import annotations

import numpy as np

from msmon.insight.facts import Facts
from msmon.insight.lateness import Late, chain_of, cost_of
from msmon.insight.wording import percent, ranks_text


def cost_of_member(facts: Facts, member: int) -> float:
    """Return the share of every step that a late member costs the job."""
    return cost_of(chain_of(member, facts.late, facts.window), facts.recent)


def waiting_members(facts: Facts) -> int:
    """Return how many members wait for a late one."""
    return len(facts.window.times) - 1


def window_ns(facts: Facts) -> float:
    """Return the time of all steps of the window, in ns."""
    times_of = facts.window.times
    return float(np.median(times_of["total_ns"])) if len(times_of) else 0.0


def to_trace(facts: Facts, member: int) -> tuple[int, ...]:
    """Return a member and a peer to compare it with."""
    return (member, *facts.peers_of(member)[:1])


def lateness_text(facts: Facts, late: Late) -> str:
    """Return how late a member is, in words."""
    group = facts.window.names.groups[late.group]
    late_ms = late.excess_share * facts.window.step_ns / 1e6
    return (
        f"causes {percent(late.share)} of the waiting for late ranks in group {group}, "
        f"{late_ms:.1f} ms a step"
    )


def unseen_text(facts: Facts) -> list[str]:
    """Return a sentence on the ranks that were not seen, if there are any."""
    unseen = facts.window.unseen
    if not unseen:
        return []
    return [f"not seen: ranks {ranks_text(unseen)}; one of them may be later still"]
