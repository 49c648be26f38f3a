"""Which collectives a window tells of one by one."""

from __future__ import annotations

import numpy as np
import pytest

from msmon.agent.session.collective_calls import MOST_CALLS, MOST_ROWS, CollectiveCalls, StepSpan

STEP_NS = 1024
NAMES = [("allReduce", "tp", 20), ("reduceScatter", "dp", 24)]


def steps(first: int, last: int) -> list[StepSpan]:
    """Return steps of 1,024 ns each. In the middle of step n lies the moment n * 1,024."""
    return [StepSpan(n, n * STEP_NS - 512, n * STEP_NS + 512) for n in range(first, last)]


def add(calls: CollectiveCalls, first: int, last: int, per_step: int = 4) -> None:
    """Add the collectives of steps; the last one of each step belongs to another group."""
    places = np.arange(first * per_step, last * per_step)
    start_ns = places // per_step * STEP_NS - 512 + places % per_step * (STEP_NS // per_step) + 10
    labels = np.where(places % per_step == per_step - 1, 1, 0)
    calls.add(start_ns, start_ns + 5, labels, NAMES)


def test_the_roundest_whole_step_is_told() -> None:
    calls = CollectiveCalls()
    add(calls, 90, 101)
    calls.add_steps(steps(90, 100))
    step, rows = calls.take()
    assert step == 96
    begin_ns = 96 * STEP_NS - 512
    assert (rows["start_ns"] - begin_ns).tolist() == [10, 266, 522, 778]
    assert calls.moment_ns == 96 * STEP_NS
    texts = list(calls.texts)
    assert [texts[group] for group in rows["group"].tolist()] == ["tp", "tp", "tp", "dp"]
    assert [texts[operation] for operation in rows["operation"].tolist()][-1] == "reduceScatter"
    assert rows["size_class"].tolist() == [20, 20, 20, 24]


@pytest.mark.parametrize("moved", range(-3, 4))
def test_ranks_choose_the_same_step_however_they_count_and_when_they_began(moved: int) -> None:
    told = []
    for begin, counted in ((200, 0), (200 + moved, 7)):
        calls = CollectiveCalls()
        add(calls, begin, begin + 17)
        spans = steps(begin, begin + 16)
        calls.add_steps([StepSpan(s.number + counted, s.start_ns, s.end_ns) for s in spans])
        told.append(calls.take()[1]["start_ns"].tolist())
        assert calls.moment_ns == 208 * STEP_NS
    assert told[0] == told[1]


def test_each_group_counts_its_own_from_the_begin_of_the_session() -> None:
    calls = CollectiveCalls()
    add(calls, 7, 17)
    calls.add_steps(steps(7, 16))
    step, rows = calls.take()
    assert step == 8
    assert rows["number"].tolist() == [3, 4, 5, 1]


def test_records_that_come_out_of_order_are_numbered_by_time() -> None:
    calls = CollectiveCalls()
    calls.add(np.array([1500, 1100]), np.array([1600, 1200]), np.array([0, 0]), NAMES)
    calls.add(np.array([2000]), np.array([2100]), np.array([0]), NAMES)
    calls.add_steps(steps(1, 2))
    assert calls.take()[1]["number"].tolist() == [0, 1]


def test_a_step_whose_collectives_have_not_all_come_waits() -> None:
    calls = CollectiveCalls()
    add(calls, 62, 64)
    calls.add_steps(steps(62, 66))
    assert calls.take()[0] == 62
    add(calls, 64, 66)
    assert calls.take()[0] == 64
    assert calls.take()[0] == -1  # nothing new


def test_without_steps_the_roundest_second_is_told() -> None:
    calls = CollectiveCalls()
    start_ns = np.arange(40) * 100_000_000
    calls.add(start_ns, start_ns + 1000, np.zeros(40, np.int64), NAMES)
    step, rows = calls.take()
    assert step == -1
    assert rows["number"].tolist() == list(range(20, 30))


def test_of_a_long_step_the_first_of_each_group_are_told() -> None:
    calls = CollectiveCalls()
    add(calls, 8, 10, per_step=1000)
    labels = np.repeat([0, 1], [900, 60])
    start_ns = 11_000 + np.arange(960)
    calls.add(start_ns, start_ns + 1, labels, NAMES)
    calls.add(np.array([20_000]), np.array([20_001]), np.array([0]), NAMES)
    calls.add_steps([StepSpan(16, 11_000, 12_000)])
    _, rows = calls.take()
    assert len(rows) <= MOST_ROWS
    assert np.bincount(rows["group"]).max() == MOST_ROWS - 60
    assert (np.diff(rows["start_ns"]) > 0).all()


def test_memory_is_bounded() -> None:
    calls = CollectiveCalls()
    for begin in range(0, 40_000, 100):
        add(calls, begin, begin + 100)
    calls.add_steps(steps(0, 40_000))
    step, _ = calls.take()
    assert step * 4 >= 160_000 - MOST_CALLS - 400
    many = [(f"operation {n}", f"group {n}", 0) for n in range(5000)]
    zeros = np.zeros(5000, np.int64)
    calls.add(zeros + 10**9, zeros + 10**9 + 1, np.arange(5000), many)
    assert len(calls.texts) <= 1024


def test_numbers_that_begin_anew_are_followed() -> None:
    calls = CollectiveCalls()
    add(calls, 500, 520)
    calls.add_steps(steps(500, 519))
    assert calls.take()[0] == 512
    add(calls, 600, 611)
    later = [StepSpan(s.number - 580, s.start_ns, s.end_ns) for s in steps(600, 610)]
    calls.add_steps(later)
    assert calls.take()[0] == 608 - 580


def test_numbers_begin_anew_where_the_collectives_are_told_by_another_kind() -> None:
    calls = CollectiveCalls()
    add(calls, 0, 3)
    calls.forget()
    add(calls, 3, 6)
    calls.add_steps(steps(3, 5))
    step, rows = calls.take()
    assert (step, rows["number"].tolist()) == (4, [3, 4, 5, 1])


def test_sends_and_receives_are_left_out_and_do_not_count() -> None:
    calls = CollectiveCalls()
    names = [("send", "pp", 20), ("allReduce", "pp", 20), ("batchSendRecv", "pp", 0)]
    start_ns = 1000 + np.arange(9) * 10
    calls.add(start_ns, start_ns + 5, np.arange(9) % 3, names)
    calls.add(np.array([5000]), np.array([5005]), np.array([1]), names)
    calls.add_steps(steps(1, 2))
    _, rows = calls.take()
    assert rows["start_ns"].tolist() == [1010, 1040, 1070]
    assert rows["number"].tolist() == [0, 1, 2]
