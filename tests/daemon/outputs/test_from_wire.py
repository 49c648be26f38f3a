"""What the outputs are given for each message, whatever its sender claims."""

from __future__ import annotations

from typing import Any

import pytest

from msmon.bus.messages import Records
from msmon.daemon.outputs.delivery import BatchDelivery, GapDelivery
from msmon.daemon.outputs.from_wire import delivery_of
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
