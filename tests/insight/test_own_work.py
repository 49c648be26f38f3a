"""A rank's own work against that of its peers."""

from __future__ import annotations

import numpy as np
import pytest

from msmon.insight.own_work import Work, between_positions, median_of_others, own_work


def work(medians, count=100) -> Work:
    medians = np.array(medians, float)
    counts = np.full(medians.shape, float(count))
    operators = np.arange(medians.shape[1])
    return Work(counts, medians * counts, medians, np.zeros(medians.shape), operators)


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 8])
def test_the_median_of_the_others_leaves_out_each_row_in_turn(rows):
    values = np.random.default_rng(1).random((rows, 3))
    for row in range(rows):
        others = np.sort(np.delete(values, row, axis=0), axis=0)
        assert median_of_others(values)[row] == pytest.approx(others[(rows - 2) // 2])


def test_a_slow_member_stands_out_and_its_peers_do_not():
    result = own_work(work([[1.0, 2.0], [1.0, 2.0], [1.5, 3.0]]), np.array([0, 0, 0]))
    assert result.ratio == pytest.approx([1.0, 1.0, 1.5])
    assert [operator for operator, _ in result.worst(2)] == [1, 0]


def test_ranks_of_other_positions_are_not_compared():
    result = own_work(work([[1.0], [1.0], [2.0], [2.0]]), np.array([0, 0, 1, 1]))
    assert result.ratio == pytest.approx([1.0, 1.0, 1.0, 1.0])


def test_too_few_calls_and_no_peers_say_nothing():
    assert np.isnan(own_work(work([[1.0], [2.0]], count=29), np.array([0, 0])).ratio).all()
    assert np.isnan(own_work(work([[1.0], [2.0]]), np.array([0, 1])).ratio).all()


def test_a_position_is_slow_only_if_all_of_it_is():
    positions = np.array([0, 0, 1, 1, 2, 2])
    one = between_positions(work([[1.0], [1.0], [1.0], [1.0], [1.0], [2.0]]), positions)
    all_of_it = between_positions(work([[1.0], [1.0], [1.0], [1.0], [2.0], [2.0]]), positions)
    assert one.ratio == pytest.approx([1.0, 1.0, 1.0])
    assert all_of_it.ratio == pytest.approx([1.0, 1.0, 2.0])
