"""Collected records behave as a sequence of objects, made on demand."""

from __future__ import annotations

import numpy as np
import pytest

from msmon.monitor_api.activities import CLASSES
from msmon.monitor_api.results import ActivityRecords
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind

SIZES = (3, 0, 2500, 1)
TOTAL = sum(SIZES)


@pytest.fixture
def records() -> ActivityRecords:
    batches, first = [], 0
    for size in SIZES:
        part = np.zeros(size, DTYPES[ActivityKind.API])
        part["correlation_id"] = np.arange(first, first + size)
        part["name"] = 1
        batches.append(Batch(ActivityKind.API, part, ("", f"from {first}")))
        first += size
    return ActivityRecords(ActivityKind.API, batches)


def numbers(items: object) -> list[int]:
    return [item.correlationId for item in items]  # type: ignore[attr-defined]


def test_length_order_and_indices(records: ActivityRecords) -> None:
    assert len(records) == TOTAL
    assert numbers(records) == list(range(TOTAL))
    assert numbers(records[place] for place in range(TOTAL)) == list(range(TOTAL))
    assert records[-1].correlationId == TOTAL - 1
    assert records[TOTAL - 2].name == "from 3"
    for outside in (TOTAL, -TOTAL - 1):
        with pytest.raises(IndexError):
            _ = records[outside]


@pytest.mark.parametrize(
    "part",
    [
        slice(None),
        slice(2, 5),
        slice(2, 1500, 7),
        slice(-5, None),
        slice(None, None, -400),
        slice(5, 2),
        slice(TOTAL, None),
    ],
)
def test_slices_are_those_of_a_list(records: ActivityRecords, part: slice) -> None:
    assert numbers(records[part]) == list(range(TOTAL))[part]


def test_columns_over_all_batches(records: ActivityRecords) -> None:
    columns = records.to_numpy()
    assert columns["correlation_id"].tolist() == list(range(TOTAL))
    assert set(columns["name"]) == {"from 0", "from 3", "from 2503"}


@pytest.mark.parametrize("kind", ActivityKind)
def test_nothing_collected_still_has_all_columns(kind: ActivityKind) -> None:
    empty = ActivityRecords(kind, [])
    assert len(empty) == 0
    assert list(empty) == []
    assert all(len(column) == 0 for column in empty.to_numpy().values())


@pytest.mark.parametrize("kind", [kind for kind in ActivityKind if kind is not ActivityKind.Marker])
def test_every_kind_has_objects_with_defaults_and_tuples(kind: ActivityKind) -> None:
    part = np.zeros(1, DTYPES[kind])
    part["kind"] = kind
    (item,) = ActivityRecords(kind, [Batch(kind, part, ("",))])
    assert type(item) is CLASSES[kind]
    assert len(item.to_tuple()) == len(CLASSES[kind]().to_tuple())
