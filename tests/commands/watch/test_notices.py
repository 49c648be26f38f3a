"""Which verdicts are told, and how often."""

from __future__ import annotations

import dataclasses

from msmon.commands.watch.notices import Teller, Told
from msmon.live.job_watch import Change, VerdictEvent


def event(change: Change, verdict) -> VerdictEvent:
    return VerdictEvent("train", change, verdict, 7)


def told(teller: Teller, events, present) -> list:
    return [
        (one.told, one.verdict.ranks, one.acts) for one in teller.take("train", events, present, 9)
    ]


def test_what_begins_changes_and_clears_is_told_once_each(verdict) -> None:
    teller, one = Teller(), verdict()
    worse = dataclasses.replace(one, effect=2.0)
    over = dataclasses.replace(worse, until_ns=8)
    assert told(teller, [event(Change.BEGUN, one)], [one]) == [(Told.BEGUN, (3,), True)]
    assert told(teller, [], [one]) == []
    assert told(teller, [event(Change.CHANGED, worse)], [worse]) == [(Told.CHANGED, (3,), True)]
    assert told(teller, [event(Change.CLEARED, over)], []) == [(Told.CLEARED, (3,), True)]
    assert told(teller, [], []) == []


def test_what_held_already_is_told_as_present_and_its_end_as_any(verdict) -> None:
    teller, one = Teller(), verdict()
    (first,) = teller.first_look("train", [one], 9)
    assert (first.told, first.acts) == (Told.PRESENT, True)
    assert told(teller, [event(Change.CLEARED, one)], []) == [(Told.CLEARED, (3,), True)]


def test_what_costs_little_is_told_on_demand_only_and_acts_never(verdict) -> None:
    minor = verdict(cost_percent=0.5)
    assert told(Teller(), [event(Change.BEGUN, minor)], [minor]) == []
    asked = Teller(minor=True)
    assert told(asked, [event(Change.BEGUN, minor)], [minor]) == [(Told.BEGUN, (3,), False)]
    assert told(asked, [event(Change.CLEARED, minor)], []) == [(Told.CLEARED, (3,), False)]


def test_what_comes_to_cost_enough_begins_then_and_acts_to_its_end(verdict) -> None:
    teller, minor, serious = Teller(), verdict(cost_percent=0.5), verdict(cost_percent=1.1)
    assert told(teller, [event(Change.BEGUN, minor)], [minor]) == []
    assert told(teller, [], [serious]) == [(Told.BEGUN, (3,), True)]
    assert told(teller, [], [minor]) == []
    assert told(teller, [event(Change.CLEARED, minor)], []) == [(Told.CLEARED, (3,), True)]


def test_what_came_and_went_between_two_looks_is_told_as_both(verdict) -> None:
    one = verdict()
    events = [event(Change.BEGUN, one), event(Change.CLEARED, one)]
    assert told(Teller(), events, []) == [(Told.BEGUN, (3,), True), (Told.CLEARED, (3,), True)]


def test_what_clears_and_begins_anew_between_two_looks_is_told_as_both(verdict) -> None:
    teller, one, again = Teller(), verdict(), verdict(since_step=99)
    told(teller, [event(Change.BEGUN, one)], [one])
    events = [event(Change.CLEARED, one), event(Change.BEGUN, again)]
    assert told(teller, events, [again]) == [(Told.CLEARED, (3,), True), (Told.BEGUN, (3,), True)]


def test_a_verdict_that_vanishes_without_a_word_has_ended(verdict) -> None:
    teller, one = Teller(), verdict()
    told(teller, [event(Change.BEGUN, one)], [one])
    (end,) = teller.take("train", [], [], 9)
    assert (end.told, end.verdict.until_ns) == (Told.CLEARED, 9)


def test_a_forgotten_job_is_told_anew(verdict) -> None:
    teller, one = Teller(), verdict()
    told(teller, [event(Change.BEGUN, one)], [one])
    teller.forget("train")
    assert told(teller, [], [one]) == [(Told.BEGUN, (3,), True)]


def test_json_has_the_verdict_and_what_became_of_it(notice) -> None:
    fields = notice().as_json()
    assert (fields["change"], fields["job"], fields["kind"]) == ("begun", "train", "slow-device")
    assert (fields["ranks"], fields["alerts"], fields["trace"]) == ((3,), True, [])
