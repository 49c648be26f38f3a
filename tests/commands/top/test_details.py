"""Groups, operators and durations of a job."""

from __future__ import annotations

import pytest
from fixtures.live_windows import LiveJob

from msmon.commands.top.details import (
    bands_of,
    group_rows,
    operators_of,
    peers_of,
    ranks_of,
)
from msmon.commands.top.model import ALL_RANKS, RankKey

RANK_0 = RankKey("node0", 1000)
RANK_3 = RankKey("node1", 1003)


def test_a_group_tells_for_whom_the_others_wait(slow_model):
    whole, group = group_rows(slow_model, "train")
    assert (whole.key, whole.ranks) == (ALL_RANKS, tuple(range(8)))
    assert (group.name, group.ranks) == ("group_1", tuple(range(8)))
    assert (group.operations, group.per_step, group.last_rank) == (("allReduce",), 20, 3)
    assert group.shortest_ns < group.mean_ns


def test_ranks_of_a_group(slow_model):
    assert len(ranks_of(slow_model, "train", ALL_RANKS)) == 8
    assert [row.rank for row in ranks_of(slow_model, "train", "group_1")] == list(range(8))
    assert ranks_of(slow_model, "train", "a group that is gone") == []
    assert ranks_of(slow_model, "no such job", ALL_RANKS) == []


def test_operators_against_the_past_and_against_the_peers(slow_model):
    kernel, collective = operators_of(slow_model, "train", RANK_3)
    assert (kernel.name, kernel.kind, kernel.per_step) == ("MatMul", "Kernel", 100)
    assert kernel.peers == pytest.approx(1.3, rel=0.02)
    assert kernel.p50_ns == pytest.approx(2_400_000 * 1.3, rel=0.07)
    assert kernel.p50_ns <= kernel.p95_ns <= kernel.max_ns
    assert (collective.name, collective.group, collective.size_bytes) == (
        "allReduce",
        "group_1",
        4 << 20,
    )
    assert collective.peers < 0.9  # the others wait for it


def test_an_operator_that_became_slower_against_its_past(model_of_job):
    model = model_of_job(LiveJob(ranks=4, slow={3: 1.3}, slow_from_s=170), 200)
    kernel = operators_of(model, "train", RANK_3)[0]
    assert kernel.past == pytest.approx(1.3, rel=0.02)
    assert operators_of(model, "train", RANK_0)[0].past == pytest.approx(1.0, rel=0.02)


def test_without_earlier_windows_there_is_no_past(model_of_job):
    model = model_of_job(LiveJob(ranks=4), 25)
    assert [row.past for row in operators_of(model, "train", RANK_0)] == [None, None]


def test_the_histogram_beside_that_of_the_peers(slow_model):
    kernel = operators_of(slow_model, "train", RANK_3)[0]
    rows = bands_of(slow_model, "train", RANK_3, kernel.key)
    assert sum(row.count for row in rows) == kernel.count
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert sum(row.peers for row in rows) == pytest.approx(1)
    slowest = max(rows, key=lambda row: row.share)
    assert slowest.peers == 0
    assert [row.high_ns for row in rows[:-1]] == [row.low_ns for row in rows[1:]]
    assert len(peers_of(slow_model, "train", RANK_3)) == 7


def test_a_rank_alone_has_no_peers(model_of_job):
    model = model_of_job(LiveJob(ranks=1), 100)
    kernel = operators_of(model, "train", RANK_0)[0]
    assert kernel.peers is None
    assert bands_of(model, "train", RANK_0, kernel.key)[0].peers is None


def test_what_is_gone_has_no_rows(slow_model):
    nobody = RankKey("node0", 1)
    kernel = operators_of(slow_model, "train", RANK_0)[0]
    assert operators_of(slow_model, "train", nobody) == []
    assert bands_of(slow_model, "train", nobody, kernel.key) == []
    other = kernel.key._replace(name="not there")
    assert bands_of(slow_model, "train", RANK_0, other) == []
