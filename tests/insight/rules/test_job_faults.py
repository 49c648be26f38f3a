"""Faults for which no rank is to blame: stages, links, data, the whole job."""

from __future__ import annotations

import pytest
from fixtures.judged_job import BEGIN_WINDOW, kinds_and_ranks, told_of

from msmon.insight.verdict import Fault
from msmon.simulation.parallel_job import UNEVEN, ParallelLayout

LAYOUT = ParallelLayout(tensor=2, pipeline=2, data=4, ranks_per_host=4)
ONE_GROUP = ParallelLayout(tensor=1, pipeline=1, data=8, ranks_per_host=4)


def test_a_healthy_job_gives_no_verdict():
    assert told_of("healthy", LAYOUT, windows=60) == []


def test_a_long_stage_is_a_stage_and_no_rank():
    ((_, verdict),) = told_of("long-stage", LAYOUT, windows=8)
    assert (verdict.kind, verdict.ranks) == (Fault.STAGE_IMBALANCE, ())
    assert verdict.position == tuple(range(8, 16))


@pytest.mark.parametrize("layout", [LAYOUT, ONE_GROUP])
@pytest.mark.parametrize("name", ["slow-nic", "slow-group"])
def test_a_slow_link_names_the_group_also_where_no_other_is_like_it(name, layout):
    told = told_of(name, layout, rank=1)
    assert kinds_and_ranks(told) == {(Fault.SLOW_LINK, ())}
    window, verdict = told[0]
    assert verdict.group == ("dp_1" if layout is LAYOUT else "dp_0")
    assert window - BEGIN_WINDOW <= 10


def test_uneven_data_blames_nobody():
    assert kinds_and_ranks(told_of("uneven-lengths", LAYOUT)) == {(Fault.UNEVEN_DATA, ())}


def test_with_uneven_data_no_rank_is_blamed_by_chance():
    told = told_of("healthy", ONE_GROUP, noise=UNEVEN, windows=70)
    assert kinds_and_ranks(told) <= {(Fault.UNEVEN_DATA, ())}


def test_a_job_that_is_slower_on_all_ranks_is_degraded():
    ((window, verdict),) = told_of("all-slower", LAYOUT)
    assert (verdict.kind, verdict.ranks) == (Fault.DEGRADED, ())
    assert window - BEGIN_WINDOW <= 10
    assert "slower on all ranks" in verdict.evidence[0]
