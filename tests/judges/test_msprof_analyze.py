"""msprof-analyze on the files of whole simulated jobs: it finds what was planted, and its
totals are what the simulation recorded."""

from __future__ import annotations

from collections import defaultdict

import pytest

SLOW_RANK = 2
GROUPS = {"tensor_parallel_group": "tp", "data_parallel_group": "dp"}
"""Communicators of the simulated job and their parallel dimension."""


RANKS = 8

pytestmark = pytest.mark.xdist_group("job")


@pytest.fixture(scope="module")
def job(msprof_analyze, export_job):
    return export_job(RANKS)


@pytest.fixture
def analyze(job, msprof_analyze):
    return lambda mode: msprof_analyze(mode, job.directory)


def test_hccl_sum(job, analyze) -> None:
    result = analyze("hccl_sum")
    rows = result("SELECT Rank, OpType, Count, SumNs FROM HcclPerRankStats")
    assert {(rank, name): totals for rank, name, *totals in rows} == {
        key: list(totals) for key, totals in job.recorded("Communication").items()
    }
    groups = dict(result("SELECT GroupName, Ranks FROM HcclGroupNameMap"))
    for name in GROUPS:
        assert sorted(map(int, groups[name].split(";"))) == list(range(job.ranks))


def test_collectives_have_one_name_on_all_ranks(job) -> None:
    ranks_of = defaultdict(set)
    for rank, operator, group in job.exported(
        "SELECT name.value, grouping.value FROM COMMUNICATION_OP "
        "JOIN STRING_IDS AS name ON name.id = opName "
        "JOIN STRING_IDS AS grouping ON grouping.id = groupName"
    ):
        if group in GROUPS:
            ranks_of[operator].add(rank)
    assert len(ranks_of) > 20
    assert all(len(ranks) == job.ranks for ranks in ranks_of.values())


def test_compute_op_sum(job, analyze) -> None:
    rows = analyze("compute_op_sum")(
        "SELECT Rank, OpName, Count, SumNs FROM ComputeOpPerRankStatsByOpName"
    )
    assert {(rank, name): totals for rank, name, *totals in rows} == {
        key: list(totals) for key, totals in job.recorded("Kernel").items()
    }


def test_cann_api_sum(job, analyze) -> None:
    rows = analyze("cann_api_sum")("SELECT rank, name, totalCount, totalTimeNs FROM CannApiSumRank")
    assert {(rank, name): totals for rank, name, *totals in rows} == {
        key: list(totals) for key, totals in job.recorded("API", "AclAPI", "RuntimeAPI").items()
    }


def test_mstx_sum(job, analyze) -> None:
    result = analyze("mstx_sum")
    found = result(
        "SELECT Rank, count(*), sum(CannDurationNs), sum(DeviceDurationNs) "
        "FROM MSTXMarkStats GROUP BY Rank"
    )
    wanted = job.exported(
        "SELECT count(*), sum(MSTX_EVENTS.endNs - MSTX_EVENTS.startNs), "
        "sum(TASK.endNs - TASK.startNs) FROM MSTX_EVENTS LEFT JOIN TASK USING (connectionId)"
    )
    # The tool keeps device times as floats, which are whole multiples of 256 ns today.
    assert found == [pytest.approx(row, abs=512 * row[1]) for row in wanted]
    steps = {step for _, step in job.exported("SELECT id FROM STEP_TIME")}
    assert {step for (step,) in result("SELECT DISTINCT StepId FROM MSTXMarkStats")} - {0} == steps


def test_slow_link(job, analyze) -> None:
    rows = analyze("slow_link")(
        "SELECT opTypeRelatedRanksDataSize, MaxNs / MedianNs FROM SlowLinkSum"
    )
    on_all_ranks = f"hcom_allReduce__101_0_1{job.ranks}_"
    (times_usual,) = [ratio for name, ratio in rows if name.startswith(on_all_ranks)]
    assert times_usual > 4


def test_slow_rank(analyze) -> None:
    votes = dict(analyze("slow_rank")("SELECT rankId, slowAffectCount FROM SlowRank"))
    assert max(votes, key=votes.__getitem__) == SLOW_RANK
    assert votes[SLOW_RANK] > 0.9 * sum(votes.values())


def test_pp_chart(job, msprof_analyze, analyze) -> None:
    analyze("pp_chart")
    wanted = job.exported(
        "SELECT value, count(*) FROM MSTX_EVENTS JOIN TASK USING (connectionId) "
        "JOIN STRING_IDS ON message = STRING_IDS.id "
        "WHERE value IN ('forward', 'backward') GROUP BY value ORDER BY value"
    )
    assert len(wanted) == 2 * job.ranks
    found = job.exported("SELECT name, count(*) FROM StepTaskInfo GROUP BY name ORDER BY name")
    assert sum(row[2] for row in found) == sum(row[2] for row in wanted)


def test_free_analysis(job, analyze) -> None:
    ranks = analyze("free_analysis")("SELECT DISTINCT rankId FROM FreeAnalysis ORDER BY rankId")
    assert [rank for (rank,) in ranks] == list(range(job.ranks))


def test_computational_op_masking(job, analyze) -> None:
    rows = analyze("computational_op_masking")(
        "SELECT stepId, parallelType, sum(totalCommunicationOperatorTime) "
        "FROM ComputationalOperatorMaskingLinearity "
        "WHERE parallelType IN ('tp', 'dp') GROUP BY stepId, parallelType"
    )
    found = {(step, dimension): time_ns for step, dimension, time_ns in rows}
    assert {step for step, _ in found} == {
        step for _, step in job.exported("SELECT id FROM STEP_TIME")
    }
    wanted = dict.fromkeys(found, 0)
    for _, step, group, time_ns in job.exported(
        "SELECT STEP_TIME.id, value, sum(operator.endNs - operator.startNs) "
        "FROM COMMUNICATION_OP AS operator JOIN STRING_IDS ON STRING_IDS.id = groupName "
        "JOIN STEP_TIME ON operator.startNs >= STEP_TIME.startNs "
        "AND operator.endNs <= STEP_TIME.endNs GROUP BY 1, 2"
    ):
        if group in GROUPS:  # what only some ranks have is in groups set apart
            wanted[step, GROUPS[group]] += time_ns
    assert sum(wanted.values()) > 0
    assert found == wanted
