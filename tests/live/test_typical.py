"""The typical duration of an operator, from the histogram of a window."""

from __future__ import annotations

import numpy as np
import pytest

from msmon.live.typical import typical_ns
from msmon.records.batch import Column
from msmon.records.windows import BUCKET_DTYPE, OPERATOR_DTYPE, Window, bucket_of


def window_of(*durations: Column) -> Window:
    """Return a window with one operator for each array of durations in ns."""
    operators = np.zeros(len(durations), OPERATOR_DTYPE)
    buckets = []
    for place, values in enumerate(durations):
        operators[place]["count"], operators[place]["total_ns"] = len(values), values.sum()
        operators[place]["min_ns"], operators[place]["max_ns"] = values.min(), values.max()
        bucket, count = np.unique(bucket_of(values), return_counts=True)
        rows = np.zeros(len(bucket), BUCKET_DTYPE)
        rows["operator"], rows["bucket"], rows["count"] = place, bucket, count
        buckets.append(rows)
    return Window(0, 0, 1, operators=operators, buckets=np.concatenate(buckets))


@pytest.mark.parametrize("factor", [1.0, 1.03, 1.05, 1.1, 1.4])
def test_a_slower_operator_shows_by_as_much_as_it_is_slower(factor: float) -> None:
    noise = np.random.default_rng(1).normal(1, 0.004, 1000)
    healthy = (120_000 * noise).astype(np.int64)
    slower = (120_000 * factor * noise).astype(np.int64)
    typical, _ = typical_ns(window_of(healthy, slower))
    assert typical[1] / typical[0] == pytest.approx(factor, rel=0.002)


def test_some_long_calls_change_nothing() -> None:
    steady = np.full(1000, 50_000)
    disturbed = np.append(steady, [3_000_000] * 5)
    typical, _ = typical_ns(window_of(steady, disturbed))
    assert typical[1] == pytest.approx(typical[0], rel=0.02)


def test_where_long_calls_took_most_of_the_time_the_median_counts() -> None:
    typical, _ = typical_ns(window_of(np.append(np.full(100, 50_000), [1_000_000_000] * 20)))
    assert typical[0] == pytest.approx(50_000, rel=0.07)


def test_the_spread_is_that_of_the_quartiles() -> None:
    even = np.full(400, 80_000)
    uneven = np.repeat([50_000, 100_000, 150_000, 200_000], 100)
    _, spread = typical_ns(window_of(even, uneven))
    assert spread[0] == 0
    assert 0.5 < spread[1] < 1.5


def test_an_operator_without_a_histogram_is_unknown() -> None:
    window = window_of(np.full(10, 7000))
    bare = Window(0, 0, 1, operators=window.operators)
    assert typical_ns(bare)[0].tolist() == [0.0]
    assert typical_ns(Window(0, 0, 1))[0].tolist() == []
