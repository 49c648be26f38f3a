"""Ranks behind a carrier can be chosen like ranks that have an agent."""

from __future__ import annotations

from msmon.bus.messages import Selection
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.registry import Process
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
