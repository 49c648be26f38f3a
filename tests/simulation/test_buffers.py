"""MSPTI's buffer protocol, rule by rule, with plain ctypes callbacks."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from msmon.simulation.buffers import ActivityBuffers

RECORD_BYTES = 56


def stream(count: int, record_bytes: int = RECORD_BYTES):
    """Return data and offsets of ``count`` records, each filled with its number."""
    data = np.repeat(np.arange(count, dtype=np.uint8), record_bytes)
    return data, np.arange(count + 1) * record_bytes


def recorded_numbers(lender) -> list[int]:
    """Return the numbers of the records that came back, in the order of completion."""
    return [byte for item in lender.completions for byte in item.data[::RECORD_BYTES]]


def registered(lender, lost_delivery_thread: bool = False) -> ActivityBuffers:
    buffers = ActivityBuffers(lost_delivery_thread)
    buffers.register(*lender.addresses)
    return buffers


def test_no_buffer_is_requested_before_a_record(lender) -> None:
    lent = lender(1 << 20)
    buffers = registered(lent)
    buffers.flush_all()
    assert (lent.requests, lent.completions) == (0, [])


def test_current_buffer_comes_only_with_flush_all_and_on_its_thread(lender) -> None:
    lent = lender(1 << 20)
    buffers = registered(lent)
    buffers.append(*stream(3))
    assert not lent.completions
    buffers.flush_all()
    assert recorded_numbers(lent) == [0, 1, 2]
    assert lent.completions[0].thread_id == threading.get_ident()
    assert lent.completions[0].size_bytes == 1 << 20


@pytest.mark.parametrize(
    ("size_bytes", "records_per_buffer"),
    [
        (700, 10),  # 560 is 80 %: ten records reach it exactly
        (710, 11),  # 568 is 80 %: ten records fall short of it, the eleventh still goes in
        (RECORD_BYTES, 1),
    ],
)
def test_rotates_before_the_record_that_finds_80_percent(
    lender, size_bytes: int, records_per_buffer: int
) -> None:
    lent = lender(size_bytes)
    buffers = registered(lent, lost_delivery_thread=True)
    buffers.append(*stream(records_per_buffer))
    assert lent.requests == 1
    buffers.append(*stream(1))
    assert lent.requests == 2
    buffers.flush_all()
    lengths = [len(item.data) for item in lent.completions]
    assert lengths == [records_per_buffer * RECORD_BYTES, RECORD_BYTES]


def test_eight_mib_hold_as_many_records_as_in_the_real_library(lender) -> None:
    lent = lender(8 << 20)
    buffers = registered(lent, lost_delivery_thread=True)
    count = 119_839
    data = np.zeros(count * RECORD_BYTES, dtype=np.uint8)
    buffers.append(data, np.arange(count + 1) * RECORD_BYTES)
    buffers.flush_all()
    assert [len(item.data) for item in lent.completions] == [6_710_928, RECORD_BYTES]


def test_many_records_at_once_rotate_as_one_by_one(lender) -> None:
    lent = lender(1000)
    buffers = registered(lent, lost_delivery_thread=True)
    assert buffers.append(*stream(200)) != []
    buffers.flush_all()
    assert recorded_numbers(lent) == list(range(200))
    assert {len(item.data) // RECORD_BYTES for item in lent.completions[:-1]} == {15}


def test_each_full_buffer_comes_on_a_thread_of_its_own(lender) -> None:
    lent = lender(700)
    buffers = registered(lent)
    buffers.append(*stream(25))
    lent.wait_for(2)
    assert threading.get_ident() not in {item.thread_id for item in lent.completions}
    buffers.flush_all()
    assert sorted(recorded_numbers(lent)) == list(range(25))


def test_without_delivery_thread_full_buffers_wait_for_flush_all(lender) -> None:
    lent = lender(700)
    buffers = registered(lent, lost_delivery_thread=True)
    buffers.append(*stream(25))
    assert not lent.completions
    buffers.flush_all()
    assert {item.thread_id for item in lent.completions} == {threading.get_ident()}
    assert recorded_numbers(lent) == list(range(25))


def test_declined_with_size_zero_asks_again_for_every_record(lender) -> None:
    lent = lender(0, decline=True)
    buffers = registered(lent)
    assert buffers.append(*stream(5)) == []
    assert lent.requests == 5
    buffers.flush_all()
    assert [(item.address, item.size_bytes) for item in lent.completions] == [(0, 0)] * 5


def test_declined_with_a_size_asks_again_only_after_flush_all(lender) -> None:
    lent = lender(1000, decline=True)
    buffers = registered(lent)
    assert buffers.append(*stream(5)) == []
    assert buffers.append(*stream(5)) == []
    assert lent.requests == 1
    lent.decline = False
    buffers.flush_all()
    assert [(item.address, item.size_bytes) for item in lent.completions] == [(0, 1000)]
    assert buffers.append(*stream(5)) == [slice(0, 5)]


def test_record_larger_than_the_buffer_is_dropped(lender) -> None:
    lent = lender(32)
    buffers = registered(lent)
    assert buffers.append(*stream(3)) == []
    buffers.flush_all()
    assert [item.data for item in lent.completions] == [b""]


def test_records_before_registration_are_dropped() -> None:
    assert ActivityBuffers(lost_delivery_thread=False).append(*stream(3)) == []


def test_buffer_completes_through_the_callbacks_registered_last(lender) -> None:
    first, second = lender(1000), lender(1000)
    buffers = registered(first)
    buffers.append(*stream(3))
    buffers.register(*second.addresses)
    buffers.flush_all()
    assert not first.completions
    assert len(second.completions) == 1
