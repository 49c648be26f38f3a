"""Ranks behind a carrier can be chosen like ranks that have an agent."""

from __future__ import annotations

from msmon.bus.messages import Selection
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.process import Process
from msmon.daemon.selection import select
from msmon.sessions import ProcessInfo

OWN = Peer(Role.USER, "uid 1000", "uid 1000", 1000)


def carrier(rank: int, local_rank: int) -> Process:
    info = ProcessInfo("host", 100, 1, rank=rank, local_rank=local_rank, local_world_size=4)
    return Process(info, OWN, b"r", "1", 0.0, carrier=True)


def chosen(rank: int, process: Process) -> bool:
    return bool(select(Selection(ranks=[rank]), [process], "host", 0.0).processes)


def test_a_carrier_reaches_the_ranks_of_its_node():
    second_node = carrier(5, 1)
    assert [rank for rank in range(10) if chosen(rank, second_node)] == [4, 5, 6, 7]


def test_a_carrier_that_does_not_know_its_place_reaches_its_own_rank():
    assert [rank for rank in range(10) if chosen(rank, carrier(5, -1))] == [5]


class Counted(int):
    """A number that counts how often it is compared or hashed."""

    looks = 0

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return int(self) == other

    def __hash__(self) -> int:
        Counted.looks += 1
        return hash(int(self))


def test_the_work_grows_with_numbers_plus_processes_not_with_their_product():
    count = 1000
    known = [
        Process(ProcessInfo("host", pid, 1, rank=pid), OWN, b"r", "1", 0.0) for pid in range(count)
    ]
    wanted = [Counted(rank) for rank in range(count // 2, count * 2)]
    Counted.looks = 0
    selected = select(Selection(ranks=wanted), known, "host", 0.0)
    assert len(selected.processes) == count // 2
    assert len(selected.missing) == 1000
    assert Counted.looks < 20 * count


def test_a_carrier_that_claims_a_huge_launch_costs_no_more():
    info = ProcessInfo("host", 100, 1, rank=0, local_rank=0, local_world_size=2**62)
    huge = Process(info, OWN, b"r", "1", 0.0, carrier=True)
    assert chosen(7, huge)


def test_only_those_who_may_learn_it_are_told_that_a_pid_exists():
    known = [carrier(0, 0)]
    for may_probe, told in ((True, "runs on host"), (False, "process 1 never registered")):
        selected = select(Selection(pids=[1]), known, "host", 0.0, lambda _, may=may_probe: may)
        assert told in selected.text


def test_what_is_missing_is_listed_up_to_a_number_and_counted_beyond():
    selected = select(Selection(ranks=list(range(100, 3000))), [carrier(0, 0)], "host", 0.0)
    assert len(selected.missing) == 1000
    assert selected.text.endswith("2880 more")
