"""Each owner has a share of every resource; using it up costs nobody else anything."""

from __future__ import annotations

import pytest

from msmon.daemon.access.shares import LIMITS, Resource, Shares, ShareUsedUp

LOOP = LIMITS[Resource.LOOP_S]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shares(clock: Clock) -> Shares:
    return Shares(lambda owner: owner == "uid 0", clock)


def test_a_used_up_share_is_refused_and_named(shares: Shares) -> None:
    shares.take("uid 7", Resource.REQUESTS, LIMITS[Resource.REQUESTS].amount)
    with pytest.raises(ShareUsedUp, match="uid 7 has used up its share of requests"):
        shares.take("uid 7", Resource.REQUESTS)


def test_another_owner_does_not_notice(shares: Shares) -> None:
    shares.take("uid 7", Resource.REQUESTS, LIMITS[Resource.REQUESTS].amount)
    assert shares.try_take("uid 8", Resource.REQUESTS)
    assert shares.try_take("key olga", Resource.REQUESTS)


def test_a_refusal_counts_nothing(shares: Shares) -> None:
    assert not shares.try_take("uid 7", Resource.REQUESTS, 1e9)
    assert shares.used("uid 7", Resource.REQUESTS) == 0


def test_what_is_given_back_can_be_taken_again(shares: Shares) -> None:
    most = LIMITS[Resource.SESSIONS].amount
    shares.take("uid 7", Resource.SESSIONS, most)
    shares.give_back("uid 7", Resource.SESSIONS, 3)
    assert shares.used("uid 7", Resource.SESSIONS) == most - 3
    shares.take("uid 7", Resource.SESSIONS, 3)


def test_nothing_can_be_given_back_twice(shares: Shares) -> None:
    shares.take("uid 7", Resource.SESSIONS)
    shares.give_back("uid 7", Resource.SESSIONS, 5)
    assert shares.used("uid 7", Resource.SESSIONS) == 0


def test_a_rate_comes_back_with_time(shares: Shares, clock: Clock) -> None:
    shares.take("uid 7", Resource.LOOP_S, LOOP.amount)
    assert not shares.try_take("uid 7", Resource.LOOP_S, 0.1)
    clock.now_s += 1.0
    assert shares.try_take("uid 7", Resource.LOOP_S, LOOP.refill_per_s)


def test_a_cost_known_afterwards_is_counted_whatever_is_left(shares: Shares) -> None:
    assert shares.charge("uid 7", Resource.LOOP_S, LOOP.amount / 2)
    assert not shares.charge("uid 7", Resource.LOOP_S, LOOP.amount)


def test_debts_are_bounded_so_that_they_can_be_paid(shares: Shares, clock: Clock) -> None:
    shares.charge("uid 7", Resource.LOOP_S, 1e6)
    clock.now_s += 2 * LOOP.amount / LOOP.refill_per_s
    assert shares.used("uid 7", Resource.LOOP_S) == 0


def test_an_operator_has_more(shares: Shares) -> None:
    users = shares.limit("uid 7", Resource.PROCESSES)
    assert shares.limit("uid 0", Resource.PROCESSES) > users
    shares.take("uid 0", Resource.PROCESSES, users + 1)


def test_owners_that_hold_nothing_are_forgotten(shares: Shares, clock: Clock) -> None:
    for number in range(5000):
        shares.charge(f"key {number}", Resource.REFUSED_AUDIT_LINES, 1)
        clock.now_s += 100.0
    assert shares.used("key 0", Resource.REFUSED_AUDIT_LINES) == 0
    assert shares.try_take("key new", Resource.REFUSED_AUDIT_LINES)
