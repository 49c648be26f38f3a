"""What counts as a time is decided in one place."""

from __future__ import annotations

import numpy as np
import pytest

from msmon.records.durations import EARLIEST_NS, LATEST_NS, are_spans, are_times

NOW_NS = 1_790_000_000_000_000_000
NEVER = 2**64 - 1


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "usable"),
    [
        (NOW_NS, NOW_NS + 700, True),
        (NOW_NS, NOW_NS, True),
        (EARLIEST_NS, LATEST_NS - 1, True),
        (NOW_NS, NEVER, False),
        (NOW_NS, 2**63 - 1, False),
        (NOW_NS, 0, False),
        (0, 0, False),
        (52_871_003, 52_871_959, False),
        (52_871_003, NOW_NS, False),
        (NOW_NS + 700, NOW_NS, False),
        (NEVER, NEVER, False),
    ],
)
def test_a_span_has_two_times_in_their_order(start_ns: int, end_ns: int, usable: bool) -> None:
    columns = np.array([[start_ns], [end_ns]], np.uint64)
    assert are_spans(*columns).tolist() == [usable]
    assert usable <= are_times(columns).all()


def test_a_time_lies_between_2001_and_2096() -> None:
    numbers = [0, 1, EARLIEST_NS - 1, EARLIEST_NS, NOW_NS, LATEST_NS - 1, LATEST_NS, NEVER]
    judged = [False, False, False, True, True, True, False, False]
    assert are_times(np.array(numbers, np.uint64)).tolist() == judged
