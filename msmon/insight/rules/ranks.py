"""Which ranks are to blame: slow devices and slow hosts."""

from __future__ import annotations

import numpy as np

from msmon.insight.facts import Candidate, Facts
from msmon.insight.lateness import Late
from msmon.insight.own_work import typical_deviation
from msmon.insight.rank_history import LEAST_EFFECT, LEAST_EFFECT_SIGMAS
from msmon.insight.rules.amounts import (
    cost_of_member,
    lateness_text,
    to_trace,
    unseen_text,
    waiting_members,
)
from msmon.insight.verdict import Abstained, Fault
from msmon.insight.wording import member_text, times

PASSED_ON = 0.5
"""A late rank only passes a delay on if it has waited for at least this share of its lateness."""

EXPLAINED = 0.3
"""Slow work explains a lateness if it takes at least this share of it."""

HOST_SHARE = 0.3
"""A late rank's host is slow if its device idled for at least this share of its lateness."""

HOST_CHANCE = 0.02
"""And if its lateness is chance with at most this probability. Idle time is weaker evidence than
slow work: where some transfers are not recorded, a device seems to idle while it waits."""

IDLE_SIGMAS = 5.0
"""And by so many times as much as the idle time of ranks usually differs."""

UNEXPLAINED = "late to collectives, though neither its kernels nor its host are slower"


def rank_faults(facts: Facts) -> tuple[list[Candidate], list[Abstained]]:
    """Return who is slow and makes others wait, and whose lateness can't be explained."""
    costliest: dict[int, Late] = {}
    for late in facts.late:
        costliest.setdefault(late.member, late)
    culprits: dict[int, Late | None] = {
        member: costliest.get(member)
        for member, slow in facts.slow.items()
        if _explains(facts, member, costliest.get(member))
        or not facts.judges_lateness
        or slow.against_itself
    }
    found, unexplained = [], []
    for member, late in costliest.items():
        if member in culprits:
            continue
        if _passes_on(facts, late):
            origin = _origin(facts, late)
            if origin is not None:
                culprits.setdefault(origin, late)
            continue
        candidate = _slow_host(facts, late)
        if candidate is not None:
            found.append(candidate)
        elif late.is_sure and not _may_become_slow(facts, member):
            unexplained.append(facts.member(member).rank)
    found += [_slow_device(facts, member, late) for member, late in culprits.items()]
    return found, [Abstained((rank,), UNEXPLAINED) for rank in unexplained]


def _explains(facts: Facts, member: int, late: Late | None) -> bool:
    """Whether a slow member's work takes so much longer that it explains a lateness."""
    if late is None:
        return False
    effect = facts.slow[member].effect
    busy_ns = float(facts.work.total_ns[member].sum()) / max(1, facts.steps)
    lateness_ns = late.excess_share * facts.window.step_ns
    return busy_ns * effect / (1 + effect) >= EXPLAINED * lateness_ns


def _may_become_slow(facts: Facts, member: int) -> bool:
    """Whether a member is slower than its peers now; the next windows tell whether that stays."""
    return float(np.nan_to_num(facts.own.ratio[member])) > 1 + LEAST_EFFECT


def _origin(facts: Facts, late: Late) -> int | None:
    """Return the slow rank whose delay a late member passes on: the slowest one it talks to."""
    slow = [
        other
        for other in sorted(facts.window.near(late.member))
        if other in facts.slow and _explains(facts, other, late)
    ]
    return max(slow, key=lambda other: facts.slow[other].effect, default=None)


def _passes_on(facts: Facts, late: Late) -> bool:
    """Whether a late rank has waited itself in other groups, more than those that wait for it."""
    waited = facts.waited_elsewhere_ns(late.group)
    others = [ns for member, ns in waited.items() if member != late.member]
    if not others or late.member not in waited:
        return False
    lateness_ns = late.excess_share * facts.window.step_ns
    return waited[late.member] - float(np.median(others)) >= PASSED_ON * lateness_ns


def _slow_device(facts: Facts, member: int, late: Late | None) -> Candidate:
    slow = facts.slow[member]
    compared = facts.stages if slow.against_itself else facts.own
    row = int(facts.positions[member]) if slow.against_itself else member
    worst = [
        f"{facts.window.names.operators[operator][0]} {times(ratio)}"
        for operator, ratio in compared.worst(row)
    ]
    evidence = [f"worst: {', '.join(worst)}"] if worst else []
    if late is not None:
        waits = f"rank {facts.member(late.member).rank} waits for it and "
        evidence.append(("" if late.member == member else waits) + lateness_text(facts, late))
    elif not facts.judges_lateness:
        evidence.append(
            "no collectives could be compared (none recorded, or steps unknown), so who waits for "
            "it is not known"
        )
    evidence += unseen_text(facts)
    than = "it needed before" if slow.against_itself else "its peers' time for the same kernels"
    return Candidate(
        Fault.SLOW_DEVICE,
        (member,),
        slow.effect,
        cost_of_member(facts, member) if late is not None else None,
        f"slow device: {member_text(facts.member(member))} needs {times(1 + slow.effect)} {than}",
        evidence=tuple(evidence),
        waiting=waiting_members(facts) if late is not None else 0,
        to_trace=to_trace(facts, member),
        ready_since=slow.since,
    )


def _slow_host(facts: Facts, late: Late) -> Candidate | None:
    member = late.member
    lateness_ns = late.excess_share * facts.window.step_ns
    idle_ns = float(facts.idle.beyond_ns[member])
    idles = idle_ns >= max(HOST_SHARE * lateness_ns, IDLE_SIGMAS * facts.idle.sigma_ns)
    slower_calls = float(np.nan_to_num(facts.host.ratio[member])) - 1
    usual = typical_deviation(facts.host.ratio)
    calls_last = slower_calls >= max(LEAST_EFFECT, LEAST_EFFECT_SIGMAS * usual)
    idles &= late.chance < HOST_CHANCE
    if not idles and not (calls_last and late.is_sure):
        return None
    evidence = [lateness_text(facts, late)]
    if calls_last:
        calls = times(1 + slower_calls)
        evidence.append(f"its host calls last {calls} as long as those of its peers")
    if idle_ns > 0:
        evidence.append(f"its device idles {idle_ns / 1e6:.1f} ms a step more than its peers'")
    return Candidate(
        Fault.SLOW_HOST,
        (member,),
        late.excess_share,
        cost_of_member(facts, member),
        f"slow host or input: {member_text(facts.member(member))} comes "
        f"{lateness_ns / 1e6:.1f} ms late in every step, though its kernels are not slower",
        evidence=(*evidence, *unseen_text(facts)),
        waiting=waiting_members(facts),
        to_trace=to_trace(facts, member),
    )
