"""The faults that a window shows, by rule.

=====  =====  ==================================================  ================================
late   slow   and                                                 fault
=====  =====  ==================================================  ================================
yes    yes                                                        slow device
yes    no     its device idles, or its host calls last longer     slow host
yes    no     it has waited in other groups                       none: it passes on a delay
no            all of its position need longer than the others     stage imbalance
no            nobody in particular is late, all wait              uneven data
no            a group needs longer for the same collective        slow link
=====  =====  ==================================================  ================================
"""

from __future__ import annotations

import numpy as np

from msmon.insight.facts import Candidate, Facts
from msmon.insight.lateness import Late, chain_of, cost_of, top_shares
from msmon.insight.links import SlowGroup, common_members, slow_groups
from msmon.insight.rank_history import LEAST_EFFECT, LEAST_EFFECT_SIGMAS
from msmon.insight.verdict import Abstained, Fault
from msmon.insight.wording import member_text, percent, ranks_text, times
from msmon.records.batch import Column

PASSED_ON = 0.5
"""A late rank only passes a delay on if it has waited for at least this share of its lateness."""

HOST_SHARE = 0.3
"""A late rank's host is slow if its device idled for at least this share of its lateness."""

HOST_CALLS_FACTOR = 1.1

MUCH_WAITING = 0.05
UNEVEN_SPREAD = 0.1
FEW_VOTES = 0.3


def rank_faults(facts: Facts) -> tuple[list[Candidate], list[Abstained]]:
    """Return who is slow and makes others wait, and whose lateness can't be explained."""
    costliest: dict[int, Late] = {}
    for late in facts.late:
        costliest.setdefault(late.member, late)
    culprits: dict[int, Late | None] = {
        member: costliest.get(member)
        for member, slow in facts.slow.items()
        if member in costliest or not facts.judges_lateness or slow.against_itself
    }
    found, unexplained = [], []
    for member, late in costliest.items():
        if member in culprits or _may_become_slow(facts, member):
            continue
        if _passes_on(facts, late):
            origin = _origin(facts, member)
            if origin is not None:
                culprits.setdefault(origin, late)
            continue
        candidate = _slow_host(facts, late)
        if candidate is not None:
            found.append(candidate)
        else:
            unexplained.append(facts.member(member).rank)
    found += [_slow_device(facts, member, late) for member, late in culprits.items()]
    reason = "late to collectives, though neither its kernels nor its host are slower"
    return found, [Abstained((rank,), reason) for rank in unexplained]


def _may_become_slow(facts: Facts, member: int) -> bool:
    """Whether a member is slower than its peers now; the next windows tell whether that stays."""
    return float(np.nan_to_num(facts.own.ratio[member])) > 1 + LEAST_EFFECT


def _origin(facts: Facts, member: int) -> int | None:
    """Return the slow rank whose delay a late member passes on: the slowest one it talks to."""
    slow = [other for other in facts.window.near(member) if other in facts.slow]
    return max(slow, key=lambda other: facts.slow[other].effect, default=None)


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
        who = (
            "" if late.member == member else f"rank {facts.member(late.member).rank} waits for it "
        )
        evidence.append(who + ("and is " if who else "") + _lateness_text(facts, late))
    elif not facts.judges_lateness:
        evidence.append(
            "no collectives could be compared (none recorded, or steps unknown), so who waits for "
            "it is not known"
        )
    evidence += _unseen_text(facts)
    than = "it needed before" if slow.against_itself else "its peers' time for the same kernels"
    return Candidate(
        Fault.SLOW_DEVICE,
        (member,),
        slow.effect,
        _cost(facts, member) if late is not None else None,
        f"slow device: {member_text(facts.member(member))} needs {times(1 + slow.effect)} {than}",
        evidence=tuple(evidence),
        waiting=_waiting(facts) if late is not None else 0,
        to_trace=(member, *facts.peers_of(member)[:1]),
        ready_since=slow.since,
    )


def _slow_host(facts: Facts, late: Late) -> Candidate | None:
    member = late.member
    lateness_ns = _per_step(facts, late.excess_ns)
    idle_ns = _against_peers(facts, member, _idle_per_step(facts))
    slower_calls = float(np.nan_to_num(facts.host.ratio[member]))
    if idle_ns < HOST_SHARE * lateness_ns and slower_calls < HOST_CALLS_FACTOR:
        return None
    evidence = [_lateness_text(facts, late)]
    if slower_calls >= HOST_CALLS_FACTOR:
        evidence.append(f"its host calls last {times(slower_calls)} as long as those of its peers")
    if idle_ns > 0:
        evidence.append(f"its device idles {idle_ns / 1e6:.1f} ms a step more than its peers'")
    evidence += _unseen_text(facts)
    effect = lateness_ns / facts.window.step_ns
    return Candidate(
        Fault.SLOW_HOST,
        (member,),
        effect,
        _cost(facts, member),
        f"slow host or input: {member_text(facts.member(member))} comes "
        f"{lateness_ns / 1e6:.1f} ms late in every step, though its kernels are not slower",
        evidence=tuple(evidence),
        waiting=_waiting(facts),
        to_trace=(member, *facts.peers_of(member)[:1]),
    )


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
    window_ns = _window_ns(facts)
    return Candidate(
        Fault.STAGE_IMBALANCE,
        (),
        factor - 1,
        min(1.0, work_ns / window_ns * (1 - 1 / factor)) if window_ns else None,
        f"stage imbalance: stage {position + 1} of {len(facts.stages.ratio)} (ranks {ranks}) needs "
        f"{times(factor)} the time of the other stages for the same kernels; {blame}",
        position=members,
        evidence=(f"worst: {', '.join(worst)}",) if worst else (),
        to_trace=members[:1],
    )


def uneven_data(facts: Facts, blamed: bool) -> list[Candidate]:
    """Return the finding that all wait and nobody in particular is late."""
    duration_ns = sum(votes.duration_ns for votes in facts.recent)
    if blamed or not duration_ns:
        return []
    share, size = top_shares(facts.recent)
    waiting = sum(votes.wait_ns for votes in facts.recent) / duration_ns
    spread = _spread_within(facts)
    few = size > 0 and share < max(FEW_VOTES, 2 / size)
    if waiting < MUCH_WAITING or spread <= UNEVEN_SPREAD or not few:
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
                f"nobody is last in more than {percent(share)} of the collectives of a group",
            ),
        )
    ]


def link_faults(facts: Facts, culprits: set[int]) -> list[Candidate]:
    """Return the groups that need longer for the same collective, without those of a culprit."""
    if not facts.window.step_ns:
        return []
    slow = [
        one
        for one in slow_groups(facts.window, facts.matched)
        if not culprits.intersection(one.members)
    ]
    common = common_members(slow)
    return [_slow_link(facts, one, common) for one in slow]


def _slow_link(facts: Facts, one: SlowGroup, common: list[int]) -> Candidate:
    group = facts.window.names.groups[one.group]
    ranks = ranks_text(facts.member(member).rank for member in one.members)
    evidence = [f"ranks of the group: {ranks}"]
    if len(common) == 1:
        evidence.append(f"{member_text(facts.member(common[0]))} is in all slow groups: its NIC?")
    return Candidate(
        Fault.SLOW_LINK,
        (),
        one.factor - 1,
        one.excess_ns / facts.window.step_ns,
        f"slow link: group {group} needs {times(one.factor)} the time of other groups for the "
        "same collectives",
        group=one.group,
        evidence=tuple(evidence),
        to_trace=one.members[:2],
    )


def _passes_on(facts: Facts, late: Late) -> bool:
    """Whether a late rank has waited itself in other groups, more than its peers have."""
    traffic = facts.window.traffic
    elsewhere = traffic[traffic["group"] != late.group]
    waited = np.bincount(
        elsewhere["member"],
        elsewhere["total_ns"].astype(np.float64),
        minlength=len(facts.window.names.members),
    )
    steps = max(1, int(facts.window.times["steps"].max(initial=0)))
    waited_ns = _against_peers(facts, late.member, waited / steps)
    return waited_ns >= PASSED_ON * _per_step(facts, late.excess_ns)


def _against_peers(facts: Facts, member: int, values: Column) -> float:
    """Return by how much a member's value is above the median of its peers."""
    peers = facts.peers_of(member)
    return float(values[member] - np.median(values[peers])) if peers else 0.0


def _idle_per_step(facts: Facts) -> Column:
    times_of = facts.window.times
    idle = np.zeros(len(facts.window.names.members))
    idle[times_of["member"]] = times_of["idle_ns"] / np.maximum(1, times_of["steps"])
    return idle


def _per_step(facts: Facts, summed_ns: float) -> float:
    """Return what a sum over the recent windows is per step."""
    duration_ns = sum(votes.duration_ns for votes in facts.recent)
    return summed_ns / max(1.0, duration_ns) * facts.window.step_ns


def _cost(facts: Facts, member: int) -> float:
    return cost_of(chain_of(member, facts.late, facts.window), facts.recent)


def _waiting(facts: Facts) -> int:
    return len(facts.window.times) - 1


def _window_ns(facts: Facts) -> float:
    times_of = facts.window.times
    return float(np.median(times_of["total_ns"])) if len(times_of) else 0.0


def _lateness_text(facts: Facts, late: Late) -> str:
    group = facts.window.names.groups[late.group]
    late_ms = _per_step(facts, late.excess_ns) / 1e6
    return (
        f"last in {percent(late.share)} of the collectives of group {group} in which anybody "
        f"waited, {late_ms:.1f} ms a step"
    )


def _unseen_text(facts: Facts) -> list[str]:
    unseen = facts.window.unseen
    if not unseen:
        return []
    return [f"not seen: ranks {ranks_text(unseen)}; one of them may be later still"]


def _typical(ratio: Column) -> float:
    """Return how much the middle half of the positions differ, which a single long one does not
    move."""
    known = np.sort(np.abs(ratio[~np.isnan(ratio)]))
    return float(known[: max(1, len(known) // 2)].max()) if len(known) > 2 else 0.0


def _spread_within(facts: Facts) -> float:
    """Return the typical spread of one operator within one rank, weighted by time."""
    weight = facts.work.total_ns
    total = weight.sum()
    return float((weight * facts.work.spread).sum() / total) if total else 0.0
