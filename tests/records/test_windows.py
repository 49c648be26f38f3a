"""Buckets and the wire form of windows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from msmon.records.windows import (
    BUCKET_DTYPE,
    OPERATOR_DTYPE,
    SUB_BUCKETS_PER_OCTAVE,
    ZERO_BUCKET,
    Window,
    bucket_bounds_ns,
    bucket_of,
)


def window(names: tuple[str, ...] = ("", "MatMul")) -> Window:
    operators = np.zeros(1, OPERATOR_DTYPE)
    operators["kind"] = 2
    operators["name"] = 1
    return Window(0, 0, 1, operators=operators, buckets=np.zeros(1, BUCKET_DTYPE), names=names)


@given(st.integers(0, 2**53))
def test_a_duration_lies_in_its_bucket(duration_ns: int) -> None:
    low, high = bucket_bounds_ns(int(bucket_of(np.array([duration_ns], np.uint64))[0]))
    assert low <= duration_ns < high


@given(st.integers(1, 2**64 - 1))
def test_a_bucket_is_an_eighth_of_its_octave_wide(duration_ns: int) -> None:
    low, high = bucket_bounds_ns(int(bucket_of(np.array([duration_ns], np.uint64))[0]))
    assert (high - low) / low <= 1 / SUB_BUCKETS_PER_OCTAVE


@given(st.lists(st.integers(0, 2**64 - 1), min_size=2))
def test_buckets_keep_the_order_of_durations(durations_ns: list[int]) -> None:
    buckets = bucket_of(np.array(sorted(durations_ns), np.uint64))
    assert (np.diff(buckets.astype(np.int64)) >= 0).all()


def test_zero_is_next_to_one() -> None:
    assert np.diff(bucket_of(np.array([0, 1], np.uint64))).tolist() == [1]
    assert bucket_bounds_ns(ZERO_BUCKET) == (0, 1)
