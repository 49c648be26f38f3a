"""How a device spent the time, from the union of intervals."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from msmon.agent.session.device_times import MOST_RECORDS, DeviceTimes, Union, most_records
from msmon.records.batch import Column


def add(times: DeviceTimes, spans: list[tuple[int, int]], is_kernel: bool, device: int = 0) -> None:
    start_ns, end_ns = np.array(spans, np.int64).reshape(-1, 2).T
    times.add(start_ns, end_ns, np.full(len(spans), device), is_kernel)


def taken(times: DeviceTimes) -> list[tuple[int, ...]]:
    rows: Column = times.take()
    return [tuple(row) for row in rows.tolist()]


def test_kernels_hide_communication_and_the_rest_is_idle() -> None:
    times = DeviceTimes()
    add(times, [(0, 10), (5, 12), (30, 40)], is_kernel=True)
    add(times, [(8, 20), (35, 50), (60, 70)], is_kernel=False)
    # busy 0-12, 30-40; exposed 12-20, 40-50, 60-70; idle 20-30, 50-60
    assert taken(times) == [(0, 70, 22, 28, 20)]


def test_the_time_between_two_windows_counts_once() -> None:
    times = DeviceTimes()
    add(times, [(100, 150)], is_kernel=True)
    assert taken(times) == [(0, 50, 50, 0, 0)]
    add(times, [(180, 200)], is_kernel=True)
    assert taken(times) == [(0, 50, 20, 0, 30)]


def test_devices_are_told_apart() -> None:
    times = DeviceTimes()
    add(times, [(0, 10)], is_kernel=True, device=0)
    add(times, [(0, 4), (8, 10)], is_kernel=True, device=1)
    assert taken(times) == [(0, 10, 10, 0, 0), (1, 10, 6, 0, 4)]


def test_of_a_busy_window_only_the_first_records_are_looked_at_and_for_how_long() -> None:
    times = DeviceTimes()
    add(times, [(n * 10, n * 10 + 5) for n in range(MOST_RECORDS + 500)], is_kernel=True)
    assert not times.room
    end_ns = (MOST_RECORDS - 1) * 10 + 5
    assert taken(times) == [(0, end_ns, MOST_RECORDS * 5, 0, end_ns - MOST_RECORDS * 5)]
    assert times.room
    later = (MOST_RECORDS + 5000) * 10
    add(times, [(later, later + 10)], is_kernel=True)
    assert taken(times) == [(0, 10, 10, 0, 0)]  # what lies between was not looked at


def test_a_window_without_records_tells_of_no_device() -> None:
    assert taken(DeviceTimes()) == []


def test_a_window_looks_at_fewer_records_where_it_is_short() -> None:
    times = DeviceTimes()
    times.most_records = most_records(1.0)
    assert (times.room, most_records(10.0)) == (16_384, MOST_RECORDS)
    add(times, [(n * 10, n * 10 + 5) for n in range(20_000)], is_kernel=True)
    assert taken(times)[0][1] == 16_383 * 10 + 5


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@given(SPANS, SPANS)
def test_times_are_those_that_counting_each_nanosecond_gives(
    kernels: list[tuple[int, int]], traffic: list[tuple[int, int]]
) -> None:
    times = DeviceTimes()
    spans = [[(begin, begin + length) for begin, length in part] for part in (kernels, traffic)]
    add(times, spans[0], is_kernel=True)
    add(times, spans[1], is_kernel=False)
    every = [end for part in spans for span in part for end in span]
    if not every:
        assert taken(times) == []
        return
    busy, talk = ({t for span in part for t in range(*span)} for part in spans)
    lasted = max(every) - min(every)
    assert taken(times) == [
        (0, lasted, len(busy), len(talk - busy), lasted - len(busy | talk)),
    ]


def test_of_a_union_it_is_known_how_much_lies_before_a_time() -> None:
    union = Union(np.array([30, 0, 5]), np.array([40, 10, 12]))
    assert union.total_ns == 22
    assert union.until(np.array([-5, 0, 7, 12, 20, 35, 99])).tolist() == [0, 0, 7, 12, 12, 17, 22]
    assert Union(np.zeros(0, np.int64), np.zeros(0, np.int64)).total_ns == 0
