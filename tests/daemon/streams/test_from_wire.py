"""What the outputs are given for each message, whatever its sender claims."""

from __future__ import annotations

from typing import Any

import pytest

from msmon.bus.messages import Records, SessionNote
from msmon.daemon.outputs.delivery import BatchDelivery, GapDelivery, NoteDelivery
from msmon.daemon.streams.from_wire import MAX_NOTE_BYTES, delivery_of
from msmon.records.kinds import ActivityKind

KERNEL = int(ActivityKind.Kernel)


def test_a_batch_counts_the_records_in_its_frames(kernels: Any) -> None:
    frames = kernels(4).to_frames()
    delivery = delivery_of(Records("s", 2, KERNEL, 4), frames)
    assert delivery == BatchDelivery("s", 2, KERNEL, 4, frames)


@pytest.mark.parametrize("claimed", [0, 3, 2**53])
def test_a_count_that_is_not_that_of_the_frames_makes_a_gap(kernels: Any, claimed: int) -> None:
    delivery = delivery_of(Records("s", 2, KERNEL, claimed), kernels(4).to_frames())
    assert isinstance(delivery, GapDelivery)
    assert (delivery.gap.stage, delivery.gap.records) == ("decode", {"Kernel": 4})


def test_an_unknown_kind_counts_no_more_records_than_bytes() -> None:
    delivery = delivery_of(Records("s", 2, 999, 2**53), (b"abc", b""))
    assert isinstance(delivery, GapDelivery)
    assert delivery.gap.records == {"kind 999": 3}


def test_a_note_counts_as_the_memory_that_it_takes() -> None:
    value = "\U0001f600" * 1000
    for note, payload in (
        (SessionNote("s", 2, "key", value), ()),
        (SessionNote("s", 2, "key", ""), (value.encode(),)),
    ):
        delivery = delivery_of(note, payload)
        assert isinstance(delivery, NoteDelivery)
        assert delivery.value == value.encode()
        assert delivery.size_bytes > 4000


def test_a_note_that_is_too_large_leaves_a_gap_without_records() -> None:
    half = b"x" * (MAX_NOTE_BYTES // 2)
    note = SessionNote("s", 2, "key", "")
    assert isinstance(delivery_of(note, (half, half)), NoteDelivery)
    delivery = delivery_of(note, (half, half, b"x"))
    assert isinstance(delivery, GapDelivery)
    assert (delivery.gap.records, "too large" in delivery.gap.reason) == ({}, True)
