"""Which order holds for a process, whose it may be, and what a stop does to it."""

from __future__ import annotations

import pytest

from msmon.bus.messages import Selection
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.process import Process
from msmon.daemon.standing.order import LeftAlone, StandingOrder, covers, may_overlap
from msmon.daemon.standing.orders import MAX_LEFT_ALONE_PER_OWNER, OrderFromFile, Orders
from msmon.errors import CommandRefused
from msmon.sessions import ProcessInfo

ROOT = Peer(Role.OPERATOR, "uid 0", "uid 0", 0)
ALICE = Peer(Role.USER, "uid 1000", "uid 1000", 1000)
BOB = Peer(Role.USER, "uid 1001", "uid 1001", 1001)
CAROL = Peer(Role.USER, "uid 1002", "uid 1002", 1002)
OLGA = Peer(Role.OPERATOR, "key olga", "k" * 40)


def order(name: str, peer: Peer = ROOT, given_ns: int = 1, **selection) -> StandingOrder:
    chosen = Selection(**selection)
    return StandingOrder(name, peer.owner, peer.uid, peer.gid, chosen, {}, given_ns)


def process(peer: Peer = ROOT, rank: int = 0, job_id: str = "") -> Process:
    info = ProcessInfo("node", 100 + rank, 1, rank=rank, job_id=job_id)
    return Process(info, peer, b"r", "1", 0.0)


class Rights:
    """Who is an operator, which may change."""

    def __init__(self) -> None:
        self.operators = {"uid 0", "key olga"}

    def __call__(self, owner: str) -> bool:
        return owner in self.operators


@pytest.fixture
def rights() -> Rights:
    return Rights()


@pytest.fixture
def from_file() -> OrderFromFile:
    return OrderFromFile()


@pytest.fixture
def orders(rights: Rights, from_file: OrderFromFile) -> Orders:
    return Orders([], from_file, rights)


def name_of(orders: Orders, one: Process) -> str:
    found = orders.of_process(one)
    return found.name if found else ""


def stop(orders: Orders, peer: Peer, own_sessions: tuple[bool, ...] = (False,), **selection):
    return orders.stop(Selection(**selection), peer, lambda _: list(own_sessions))


@pytest.mark.parametrize(
    ("outer", "inner", "covered", "overlaps"),
    [
        ({}, {}, True, True),
        ({}, {"ranks": [1]}, True, True),
        ({"ranks": [1]}, {}, False, True),
        ({"ranks": [0, 1]}, {"ranks": [1]}, True, True),
        ({"ranks": [1]}, {"ranks": [1, 2]}, False, True),
        ({"ranks": [1]}, {"ranks": [2]}, False, False),
        ({"ranks": [1]}, {"job_ids": ["a"]}, False, True),
        ({"job_ids": ["a"]}, {"job_ids": ["a"], "ranks": [1]}, True, True),
        ({"job_ids": ["a"], "ranks": [1]}, {"job_ids": ["b"], "ranks": [1]}, False, False),
    ],
)
def test_selections_that_cover_or_meet_each_other(outer, inner, covered, overlaps):
    assert covers(Selection(**outer), Selection(**inner)) is covered
    assert may_overlap(Selection(**outer), Selection(**inner)) is overlaps


def test_an_order_of_an_operator_holds_for_all_and_that_of_a_user_for_the_own(orders):
    orders.give(order("alices", ALICE))
    assert name_of(orders, process(ALICE)) == "alices"
    assert name_of(orders, process(BOB)) == ""
    orders.give(order("roots", ROOT, given_ns=2))
    assert name_of(orders, process(ALICE)) == "alices", "it was given first"
    assert name_of(orders, process(BOB)) == "roots"


def test_users_do_not_meet_each_other_but_the_orders_of_operators(orders):
    orders.give(order("alices", ALICE))
    orders.give(order("bobs", BOB))
    orders.give(order("job", ROOT, job_ids=["a"]))
    with pytest.raises(CommandRefused, match="'job' of uid 0"):
        orders.give(order("more", CAROL, job_ids=["a"]))
    with pytest.raises(CommandRefused, match="'job' of uid 0"):
        orders.give(order("olgas", OLGA, ranks=[0]))
    orders.give(order("olgas", OLGA, ranks=[0], job_ids=["b"]))


def test_the_same_order_again_lifts_its_exceptions_and_another_one_is_refused(orders):
    orders.give(order("a", ALICE))
    stop(orders, ALICE, ranks=[3])
    assert name_of(orders, process(ALICE, 3)) == ""
    orders.give(order("a", ALICE, given_ns=9))
    assert name_of(orders, process(ALICE, 3)) == "a"
    with pytest.raises(CommandRefused, match="'a' stands already"):
        orders.give(order("a", ALICE, ranks=[1]))


def test_an_order_rests_while_its_key_is_no_operators(orders, rights):
    orders.give(order("olgas", OLGA))
    rights.operators.discard("key olga")
    assert name_of(orders, process(ALICE)) == ""
    rights.operators.add("key olga")
    assert name_of(orders, process(ALICE)) == "olgas"


def test_a_user_takes_the_own_processes_out_of_an_order_of_an_operator(orders):
    orders.give(order("roots"))
    effect = stop(orders, ALICE)
    assert ([item.name for item in effect.restricted], effect.ended) == (["roots"], [])
    assert name_of(orders, process(ALICE)) == ""
    assert name_of(orders, process(BOB)) == "roots"
    orders.give(order("alices", ALICE))
    assert name_of(orders, process(ALICE)) == "alices"


def test_nobody_ends_the_order_of_another_user(orders):
    orders.give(order("alices", ALICE))
    effect = stop(orders, BOB)
    assert (effect.ended, effect.restricted) == ([], [])
    assert [item.name for item in stop(orders, ROOT).ended] == ["alices"]


def test_a_stop_that_ends_sessions_of_commands_only_leaves_the_order(orders):
    orders.give(order("a"))
    effect = stop(orders, ROOT, (True,), ranks=[0])
    assert [item.name for item in effect.goes_on] == ["a"]
    assert name_of(orders, process()) == "a"


def test_a_stop_of_a_pid_that_the_order_is_not_for_changes_nothing(orders):
    orders.give(order("a"))
    assert stop(orders, ROOT, (), pids=[4711]).restricted == []


def test_exceptions_are_bounded_and_a_wider_one_takes_in_the_narrower_ones(orders):
    orders.give(order("a"))
    for rank in range(MAX_LEFT_ALONE_PER_OWNER):
        stop(orders, ROOT, ranks=[rank])
    with pytest.raises(CommandRefused, match="leaves 16 selections alone"):
        stop(orders, ROOT, ranks=[99])
    wide = order("b").excepting(LeftAlone(Selection(ranks=[1])))
    assert len(wide.excepting(LeftAlone(Selection(ranks=[1, 2]))).left_alone) == 1


def test_an_order_of_the_file_ends_until_the_file_is_read_again(orders, from_file):
    of_file = StandingOrder("daemon.toml", "uid 0", 0, 0, Selection(), {}, 5, file="/etc/d.toml")
    from_file.replace(of_file)
    assert name_of(orders, process()) == "daemon.toml"
    with pytest.raises(CommandRefused, match=r"'daemon\.toml'"):
        orders.give(order("mine"))
    assert [item.name for item in stop(orders, ROOT).ended] == ["daemon.toml"]
    assert name_of(orders, process()) == ""
    from_file.replace(of_file)
    assert name_of(orders, process()) == "daemon.toml"
    from_file.replace(None)
    assert name_of(orders, process()) == ""
