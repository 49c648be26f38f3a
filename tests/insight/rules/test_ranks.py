"""Ranks that are to blame, and ranks that only pass on a delay."""

from __future__ import annotations

import pytest
from fixtures.judged_job import BEGIN_WINDOW, kinds_and_ranks, told_of

from msmon.insight.verdict import Fault
from msmon.simulation.parallel_job import UNEVEN, ParallelLayout
from msmon.simulation.parallel_job.faults import other_rank

LAYOUT = ParallelLayout(tensor=2, pipeline=2, data=4, ranks_per_host=4)
TWO_PEERS = ParallelLayout(tensor=1, pipeline=2, data=2)


@pytest.mark.parametrize("layout", [LAYOUT, TWO_PEERS])
@pytest.mark.parametrize("name", ["slow-kernel", "slow-10-percent"])
def test_a_slow_device_is_named_within_ten_windows(name, layout):
    told = told_of(name, layout, rank=1)
    assert kinds_and_ranks(told) == {(Fault.SLOW_DEVICE, (1,))}
    assert told[0][0] - BEGIN_WINDOW <= 10


def test_a_rank_that_is_slow_from_the_start_is_named():
    told = told_of("slow-from-the-start", LAYOUT, rank=5, windows=8)
    assert kinds_and_ranks(told) == {(Fault.SLOW_DEVICE, (5,))}


def test_all_slow_ranks_of_a_hot_host_are_named_though_none_is_last_alone():
    told = told_of("thermal-step", LAYOUT, rank=2)
    assert kinds_and_ranks(told) == {(Fault.SLOW_DEVICE, (rank,)) for rank in range(4)}


@pytest.mark.parametrize("layout", [LAYOUT, TWO_PEERS])
@pytest.mark.parametrize("name", ["slow-input", "slow-host"])
def test_a_rank_whose_device_idles_has_a_slow_host(name, layout):
    told = told_of(name, layout, rank=1, windows=40)
    assert kinds_and_ranks(told) == {(Fault.SLOW_HOST, (1,))}


def test_pauses_in_some_of_the_steps_are_found_though_most_windows_show_none():
    told = told_of("collector-pauses", LAYOUT, rank=6, windows=40)
    assert kinds_and_ranks(told) == {(Fault.SLOW_HOST, (6,))}


def test_two_faults_at_once_are_both_named():
    other = other_rank(LAYOUT, 3)
    told = told_of("slow-rank-and-slow-input", LAYOUT, rank=3)
    assert kinds_and_ranks(told) == {(Fault.SLOW_DEVICE, (3,)), (Fault.SLOW_HOST, (other,))}


def test_when_a_slow_rank_is_well_again_its_peer_is_not_blamed():
    told = told_of("slow-for-a-while", TWO_PEERS, rank=2, windows=80)
    assert kinds_and_ranks(told) == {(Fault.SLOW_DEVICE, (2,))}


@pytest.mark.parametrize("name", ["wandering", "collector-pauses-of-all"])
def test_of_ranks_that_are_slow_in_turn_none_is_blamed(name):
    told = told_of(name, LAYOUT, windows=40)
    assert all(not verdict.ranks for _, verdict in told)


def test_with_uneven_data_a_slow_device_is_named_and_no_other():
    told = told_of("slow-kernel", LAYOUT, rank=1, noise=UNEVEN, windows=50)
    named = {verdict.ranks for _, verdict in told if verdict.ranks}
    assert named == {(1,)}
