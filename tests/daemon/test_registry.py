"""Liveness and identity of processes, on a clock that the test turns."""

from __future__ import annotations

import dataclasses

import pytest

from msmon.bus.messages import Status
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.access.shares import LIMITS, Resource, Shares, ShareUsedUp
from msmon.daemon.process import Life, Process
from msmon.daemon.registry import JUDGED_PER_CHECK, MAX_OF_ONE_PID, Registry
from msmon.errors import CommandRefused
from msmon.sessions import ProcessInfo

LOST_AFTER_S = 8.0
KEEP_GONE_S = 600.0

OWN = Peer(Role.OPERATOR, "uid 0", "uid 0", 0, 5)
OTHER = Peer(Role.USER, "uid 1000", "uid 1000", 1000, 6)
REMOTE = Peer(Role.AGENT, "key node7", "public key")


@pytest.fixture
def registry() -> Registry:
    return Registry(LOST_AFTER_S, KEEP_GONE_S, Shares())


def info(pid: int = 11, start_time: int = 1, **fields) -> ProcessInfo:
    return ProcessInfo(**{"host": "node", "pid": pid, "start_time": start_time, **fields})


def check_until(registry: Registry, start_s: float, end_s: float) -> list[Process]:
    """Check every second, as the daemon does; return what became lost."""
    lost = []
    for now_s in range(int(start_s), int(end_s) + 1):
        lost += registry.expire(float(now_s))
    return lost


def test_silence_makes_a_process_lost_once(registry):
    process = registry.register(info(), OWN, b"r", "1", 0.0)
    assert check_until(registry, 0, 8) == []
    assert check_until(registry, 9, 20) == [process]
    assert process.life is Life.LOST


def test_a_process_that_speaks_again_is_live_again(registry):
    process = registry.register(info(), OWN, b"r", "1", 0.0)
    check_until(registry, 0, 20)
    registry.heard(process, 21.0)
    assert process.life is Life.LIVE
    assert registry.live() == [process]


def test_an_ended_process_does_not_come_back_without_a_hello(registry):
    process = registry.register(info(), OWN, b"r", "1", 0.0)
    registry.goodbye(process, 1.0)
    assert registry.of_route(b"r") is None
    assert process.life is Life.ENDED
    assert registry.register(info(), OWN, b"r2", "1", 2.0) is process
    assert process.life is Life.LIVE


def test_a_stop_of_the_daemon_itself_makes_nobody_lost(registry):
    registry.register(info(), OWN, b"r", "1", 0.0)
    check_until(registry, 0, 5)
    assert registry.expire(25.0) == []
    assert check_until(registry, 26, 28) == []


def test_the_gone_stay_for_a_while_and_are_forgotten_then(registry):
    registry.register(info(), OWN, b"r", "1", 0.0)
    check_until(registry, 0, 300)
    assert len(registry.all()) == 1
    check_until(registry, 301, 700)
    assert registry.all() == []
    assert registry.of_route(b"r") is None


def test_equal_pids_in_other_containers_or_lives_are_other_processes(registry):
    for number, changed in enumerate(
        (info(), info(container="c1"), info(start_time=2), info(host="node2"))
    ):
        registry.register(changed, OWN, b"%d" % number, "1", 0.0)
    assert len(registry.live()) == 4


def test_a_newer_connection_replaces_the_older(registry):
    process = registry.register(info(), OWN, b"old", "1", 0.0)
    assert registry.register(info(rank=3), OWN, b"new", "2", 1.0) is process
    assert (process.route, process.version, process.info.rank) == (b"new", "2", 3)
    assert registry.of_route(b"old") is None


def test_a_connection_speaks_for_one_process_only(registry):
    first = registry.register(info(11), OWN, b"r", "1", 0.0)
    second = registry.register(info(12), OWN, b"r", "1", 1.0)
    assert registry.of_route(b"r") is second
    assert first.life is Life.LOST


def test_the_same_claim_of_another_owner_is_another_process(registry):
    mine = registry.register(info(), OWN, b"r", "1", 0.0)
    theirs = registry.register(info(), OTHER, b"other", "1", 1.0)
    far = registry.register(info(), REMOTE, b"far", "1", 1.0)
    assert len({item.key for item in (mine, theirs, far)}) == 3
    assert registry.of_route(b"r") is mine


@pytest.mark.parametrize("silent_s", [0, 20])
def test_other_credentials_of_an_owner_never_continue_a_process(registry, silent_s):
    registry.register(info(), REMOTE, b"r", "1", 0.0)
    check_until(registry, 0, silent_s)
    renamed = dataclasses.replace(REMOTE, credential="another public key")
    with pytest.raises(CommandRefused, match="registered by key node7"):
        registry.register(info(), renamed, b"thief", "1", float(silent_s))


def another(pid: int) -> Peer:
    """A process of the same user as OTHER."""
    return dataclasses.replace(OTHER, pid=pid + 1)


def test_an_owner_with_too_many_processes_is_refused_and_others_are_not(registry):
    most = int(LIMITS[Resource.PROCESSES].amount)
    for pid in range(most):
        registry.register(info(pid), another(pid), b"%d" % pid, "1", 0.0)
    with pytest.raises(ShareUsedUp, match="registered processes"):
        registry.register(info(most), another(most), b"more", "1", 0.0)
    assert registry.register(info(most), REMOTE, b"far", "1", 0.0)


def test_what_is_gone_makes_room_for_its_owners_next_process(registry):
    most = int(LIMITS[Resource.PROCESSES].amount)
    first = registry.register(info(0), another(0), b"0", "1", 0.0)
    for pid in range(1, most):
        registry.register(info(pid), another(pid), b"%d" % pid, "1", 0.0)
    registry.goodbye(first, 1.0)
    registry.register(info(most), another(most), b"more", "1", 2.0)
    assert first not in registry.all()


def test_one_process_of_a_user_registers_few_and_its_gone_ones_make_room(registry):
    first = registry.register(info(0), OTHER, b"0", "1", 0.0)
    for number in range(1, MAX_OF_ONE_PID):
        registry.register(info(number), OTHER, b"%d" % number, "1", 0.0, carrier=True)
    with pytest.raises(CommandRefused, match="process 6 has registered 4 already"):
        registry.register(info(9), OTHER, b"9", "1", 0.0)
    registry.register(info(9), another(9), b"another", "1", 0.0)
    registry.goodbye(first, 1.0)
    registry.register(info(10), OTHER, b"9", "1", 2.0)
    assert first not in registry.all()


def test_operators_and_peers_without_a_pid_register_as_many_as_they_have(registry):
    unseen = dataclasses.replace(OTHER, pid=0)
    for number in range(2 * MAX_OF_ONE_PID):
        for peer in (OWN, REMOTE, unseen):
            registry.register(info(number), peer, b"%d%s" % (number, peer.name.encode()), "1", 0.0)
    assert len(registry.live()) == 6 * MAX_OF_ONE_PID


def test_agents_of_another_owner_hide_no_carrier(registry):
    hello(registry, rank(0), b"c", carrier=True)
    registry.register(rank(0), OTHER, b"0", "1", 0.0)
    registry.register(rank(1), OTHER, b"1", "1", 0.0)
    assert (0, True) in shown(registry.for_traces())


def rank(number: int, launch: str = "a") -> ProcessInfo:
    return ProcessInfo("host", 100 + number, 1, rank=number, launch=launch, local_world_size=2)


def hello(registry: Registry, info: ProcessInfo, route: bytes, carrier: bool = False) -> None:
    registry.register(info, OWN, route, "1", 0.0, carrier=carrier)


def shown(processes) -> list[tuple[int, bool]]:
    return [(process.info.rank, process.carrier) for process in processes]


def test_a_carrier_stands_for_ranks_until_all_have_an_agent(registry):
    hello(registry, rank(0), b"c", carrier=True)
    assert shown(registry.all()) == shown(registry.for_traces()) == [(0, True)]
    hello(registry, rank(1), b"1")
    assert shown(registry.all()) == [(0, True), (1, False)]
    assert shown(registry.for_traces()) == [(1, False)]
    hello(registry, rank(0), b"0")
    assert shown(registry.all()) == [(0, False), (1, False)]


def test_agents_of_another_launch_do_not_count(registry):
    hello(registry, rank(0), b"c", carrier=True)
    hello(registry, rank(1, "b"), b"1")
    assert (0, True) in shown(registry.for_traces())


def test_an_agent_that_says_hello_for_another_launch_leaves_the_former(registry):
    hello(registry, rank(0), b"c", carrier=True)
    hello(registry, rank(0), b"0")
    hello(registry, rank(1), b"1")
    assert (0, True) not in shown(registry.all())
    hello(registry, dataclasses.replace(rank(1), launch="b"), b"1")
    assert (0, True) in shown(registry.all())


def test_a_carrier_that_leaves_is_forgotten(registry):
    hello(registry, rank(0), b"c", carrier=True)
    registry.goodbye(registry.all()[0], 1.0)
    assert registry.all() == []


def test_forgetting_a_former_process_leaves_its_connection_to_the_next(registry):
    registry.register(info(pid=11), OWN, b"r", "1", 0.0)
    process = registry.register(info(pid=12), OWN, b"r", "1", 1.0)
    for now_s in range(2, int(KEEP_GONE_S) + 10):
        registry.heard(process, float(now_s))
        registry.expire(float(now_s))
    assert registry.all() == [process]
    assert registry.of_route(b"r") is process


def test_what_is_remembered_of_an_owners_processes_is_bounded(registry):
    most = int(LIMITS[Resource.REMEMBERED_BYTES].amount)
    first = registry.register(info(pid=11), OTHER, b"1", "1", 0.0)
    second = registry.register(info(pid=12), OTHER, b"2", "1", 0.0)
    registry.keep_status(first, Status("idle"), most)
    with pytest.raises(ShareUsedUp, match="bytes remembered"):
        registry.keep_status(second, Status("idle"), 1)
    registry.keep_status(first, Status("idle"), most - 1)
    registry.keep_status(second, Status("idle"), 1)


@pytest.mark.parametrize(
    ("older", "newer"),
    [(b"\0\0\0\0\1", b"\0\0\0\1\0"), (b"\0\xff\xff\xff\xff", b"\0\0\0\0\0")],
)
def test_a_hello_that_waited_on_a_given_up_connection_changes_nothing(registry, older, newer):
    process = registry.register(info(), OWN, newer, "1", 0.0)
    with pytest.raises(CommandRefused, match="newer connection"):
        registry.register(info(), OWN, older, "1", 1.0)
    assert registry.of_route(newer) is process
    assert registry.of_route(older) is None
    registry.register(info(), OWN, newer, "1", 2.0)
    check_until(registry, 0, 20)
    registry.register(info(), OWN, older, "1", 21.0)
    assert registry.of_route(older) is process


def test_the_part_of_strangers_is_known(registry):
    assert registry.strangers("uid 1000") == 0
    for number in range(4):
        registry.register(info(number), another(number), b"%d" % number, "1", 0.0)
    registry.register(info(4), REMOTE, b"4", "1", 0.0)
    assert registry.strangers("uid 1000") == pytest.approx(0.2)
    assert registry.strangers("uid 1001") == 1


def stepping(registry: Registry, process: Process, now_s: float, age_s: float = 0.0) -> None:
    """Have a heartbeat of an idle process tell how old its last step is; -1: none was made."""
    registry.heard(process, now_s)
    registry.keep_status(process, Status("idle", step=5, step_age_s=age_s), 100)


def family(registry: Registry, peer: Peer = OWN) -> tuple[Process, Process]:
    """Return a process and a child of it, which registers at 10 s."""
    parent = registry.register(info(11, 7), OWN, b"p", "1", 0.0)
    child = registry.register(info(12, 8, started_by="11:7"), peer, b"c", "1", 10.0)
    return parent, child


@pytest.mark.parametrize("age_s", [-1.0, 5.0])
def test_a_process_that_waits_for_the_one_that_trains_makes_room(registry, age_s):
    parent, child = family(registry)
    stepping(registry, parent, 8.0, age_s)
    stepping(registry, child, 11.0)
    assert registry.trainers(parent) == [child]
    assert registry.trainers(child) == []


def test_a_parent_that_trains_too_makes_no_room(registry):
    parent, child = family(registry)
    stepping(registry, parent, 12.0)
    stepping(registry, child, 13.0)
    assert registry.trainers(parent) == []


def test_a_parent_is_there_again_when_the_child_has_ended(registry):
    parent, child = family(registry)
    stepping(registry, parent, 11.0, -1.0)
    stepping(registry, child, 11.0)
    registry.goodbye(child, 12.0)
    assert registry.trainers(parent) == []


def test_a_parent_that_is_monitored_makes_no_room(registry):
    """It must hear of the stop."""
    parent, child = family(registry)
    stepping(registry, child, 11.0)
    registry.keep_status(parent, Status("monitoring"), 100)
    assert registry.trainers(parent) == []


def test_nobody_makes_room_for_a_child_of_another_user(registry):
    parent, child = family(registry, OTHER)
    stepping(registry, parent, 11.0, -1.0)
    stepping(registry, child, 11.0)
    assert registry.trainers(parent) == []


def test_a_process_that_says_nothing_and_is_there_is_silent_and_not_lost():
    there = [True]
    registry = Registry(LOST_AFTER_S, KEEP_GONE_S, Shares(), lambda _: there[0])
    process = registry.register(info(), OWN, b"r", "1", 0.0)
    assert check_until(registry, 0, 600) == [process]
    assert (process.life, registry.live()) == (Life.SILENT, [process])
    registry.heard(process, 601.0)
    assert process.life is Life.LIVE
    assert check_until(registry, 601, 700) == [process]
    there[0] = False
    assert check_until(registry, 701, 702) == [process]
    assert (process.life, process.gone_s, registry.live()) == (Life.LOST, 701.0, [])


def test_a_crowd_of_silent_processes_is_looked_at_in_parts():
    looked_at: list[int] = []

    def is_there(process: Process) -> bool:
        looked_at.append(process.info.pid)
        return True

    registry = Registry(LOST_AFTER_S, KEEP_GONE_S, Shares(), is_there)
    pids = range(100, 100 + 2 * JUDGED_PER_CHECK)
    for pid in pids:
        registry.register(info(pid), REMOTE, b"r%d" % pid, "1", 0.0)
    registry.expire(0.0)
    for now_s in range(2, 20, 2):
        registry.expire(float(now_s))
        assert len(looked_at) <= JUDGED_PER_CHECK * max(0, (now_s - LOST_AFTER_S) // 2)
    assert set(looked_at) == set(pids)
