"""Applying filters to batches, above all to markers that follow their start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msmon.records import record_filter as module
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.filter import Filter
from msmon.records.kinds import ActivityKind, MarkerFlag, SourceKind
from msmon.records.layout import NAMELESS_KINDS, TEXT_FIELDS
from msmon.records.markers import MarkerPairing
from msmon.records.record_filter import HELD_BATCHES, RecordFilter

HOST, DEVICE = SourceKind.HOST, SourceKind.DEVICE


def named(kind: ActivityKind, names: list[str]) -> Batch:
    strings = ("", *dict.fromkeys(name for name in names if name))
    records = np.zeros(len(names), DTYPES[kind])
    records["kind"] = kind
    if "name" in TEXT_FIELDS[kind]:
        records["name"] = [strings.index(name) for name in names]
    return Batch(kind, records, strings)


def markers(*rows: tuple[int, MarkerFlag, SourceKind, str]) -> Batch:
    batch = named(ActivityKind.Marker, [name for *_, name in rows])
    batch.records["id"] = [row[0] for row in rows]
    batch.records["flag"] = [row[1] for row in rows]
    batch.records["source_kind"] = [row[2] for row in rows]
    return batch


def record_filter(text: str) -> RecordFilter:
    return RecordFilter(Filter.parse(text))


def start(number: int, name: str) -> tuple[int, MarkerFlag, SourceKind, str]:
    return number, MarkerFlag.START, HOST, name


def end(number: int) -> tuple[int, MarkerFlag, SourceKind, str]:
    return number, MarkerFlag.END, HOST, ""


def device_range(number: int, name: str) -> list[tuple[int, MarkerFlag, SourceKind, str]]:
    return [
        (number, MarkerFlag.START_WITH_DEVICE, HOST, name),
        (number, MarkerFlag.START_WITH_DEVICE, DEVICE, ""),
        (number, MarkerFlag.END_WITH_DEVICE, HOST, ""),
        (number, MarkerFlag.END_WITH_DEVICE, DEVICE, ""),
    ]


def ids(batch: Batch) -> list[int]:
    return batch.records["id"].tolist()


@given(
    names=st.lists(st.text(alphabet="abM\udcff", max_size=4), max_size=30),
    needles=st.lists(st.text(alphabet="abM", min_size=1, max_size=2), min_size=1, max_size=3),
)
def test_named_kinds_keep_exactly_the_matching_names_in_order(
    names: list[str], needles: list[str]
) -> None:
    batch = named(ActivityKind.Kernel, names)
    kept = record_filter("Kernel:" + ",".join(needles)).apply(batch)
    expected = [name for name in names if any(needle in name for needle in needles)]
    assert kept.text("name").tolist() == expected


def test_empty_filter_keeps_every_record_of_every_kind() -> None:
    for kind in ActivityKind:
        batch = named(kind, ["x", "y"])
        assert record_filter("").apply(batch) is batch


@pytest.mark.parametrize("kind", sorted(NAMELESS_KINDS))
def test_kinds_without_names_are_always_kept(kind: ActivityKind) -> None:
    batch = named(kind, ["", ""])
    assert len(record_filter("Kernel:MatMul").apply(batch)) == 2


def test_named_kinds_that_the_filter_does_not_mention_are_dropped() -> None:
    kept = record_filter("Kernel:MatMul").apply(named(ActivityKind.API, ["MatMul"]))
    assert (kept.kind, len(kept)) == (ActivityKind.API, 0)


def test_matching_is_case_sensitive_and_looks_at_the_name_only() -> None:
    batch = named(ActivityKind.Kernel, ["matmul", "MatMul"])
    batch.records["type"] = 2  # the type column says MatMul everywhere
    kept = record_filter("Kernel:MatMul").apply(batch)
    assert kept.text("name").tolist() == ["MatMul"]


def test_end_and_device_markers_follow_their_start_within_a_batch() -> None:
    batch = markers(
        *device_range(1, "step 1"), *device_range(2, "other"), start(3, "step 2"), end(3)
    )
    assert ids(record_filter("Marker:step").apply(batch)) == [1, 1, 1, 1, 3, 3]


def test_marks_follow_too() -> None:
    batch = markers(
        (1, MarkerFlag.INSTANTANEOUS, HOST, "step"),
        (2, MarkerFlag.INSTANTANEOUS_WITH_DEVICE, HOST, "step"),
        (2, MarkerFlag.INSTANTANEOUS_WITH_DEVICE, DEVICE, ""),
        (3, MarkerFlag.INSTANTANEOUS_WITH_DEVICE, HOST, "other"),
        (3, MarkerFlag.INSTANTANEOUS_WITH_DEVICE, DEVICE, ""),
    )
    assert ids(record_filter("Marker:step").apply(batch)) == [1, 2, 2]


@given(
    st.permutations([*device_range(1, "step"), *device_range(2, "other"), start(3, "step"), end(3)])
)
def test_any_order_across_batches_keeps_the_same_records(
    rows: list[tuple[int, MarkerFlag, SourceKind, str]],
) -> None:
    current = record_filter("Marker:step")
    kept = [current.apply(markers(row)) for row in rows]
    assert sorted(number for batch in kept for number in ids(batch)) == [1, 1, 1, 1, 3, 3]
    names = [name for batch in kept for name in batch.text("name").tolist() if name]
    assert names == ["step", "step"]


def test_orphans_are_dropped_and_not_held_for_ever() -> None:
    current = record_filter("Marker:step")
    assert len(current.apply(markers(end(9)))) == 0
    for _ in range(HELD_BATCHES):
        current.apply(markers(start(1, "other")))
    assert ids(current.apply(markers(start(9, "step")))) == [9]


def test_held_followers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_RECORDS", 4)
    current = record_filter("Marker:step")
    current.apply(markers(*(end(number) for number in range(1, 5))))
    current.apply(markers(end(5)))
    released = current.apply(markers(*(start(number, "step") for number in range(1, 6))))
    assert ids(released) == [5, 1, 2, 3, 4, 5]


def test_remembered_starts_are_bounded_and_refused_ones_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REMEMBERED_STARTS", 2)
    current = record_filter("Marker:step")
    current.apply(markers(start(1, "step"), start(2, "other"), start(3, "other"), start(4, "step")))
    assert ids(current.apply(markers(end(1), end(2), end(3), end(4)))) == [1, 4]


def test_an_open_range_is_remembered_before_finished_ones_whose_device_part_never_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REMEMBERED_STARTS", 5)
    current = record_filter("Marker:step")
    current.apply(markers(start(1, "step outer")))
    for number in range(2, 30):
        host = [row for row in device_range(number, "step inner") if row[2] == HOST]
        assert ids(current.apply(markers(*host))) == [number, number]
    assert ids(current.apply(markers(end(1)))) == [1]


def test_markers_of_a_filter_without_markers_are_dropped() -> None:
    assert len(record_filter("Kernel:step").apply(markers(*device_range(1, "step")))) == 0


def changed(current: RecordFilter, text: str, pairing: MarkerPairing | None = None) -> RecordFilter:
    waiting = (pairing or MarkerPairing()).waiting
    return current.changed_to(Filter.parse(text), waiting)


FILTERS = ["", "Marker:step", "Marker:load", "Kernel:MatMul"]


@pytest.mark.parametrize("later", FILTERS)
@pytest.mark.parametrize("former", FILTERS)
def test_a_range_that_is_open_when_the_filter_changes_ends_as_it_began(
    former: str, later: str
) -> None:
    current, pairing = record_filter(former), MarkerPairing()
    ranges = [*device_range(1, "step"), *device_range(2, "load"), start(3, "step"), end(3)]
    begun = [row for row in ranges if row[1] in (MarkerFlag.START, MarkerFlag.START_WITH_DEVICE)]
    ended = [row for row in ranges if row not in begun]
    kept = current.apply(markers(*begun))
    pairing.add(kept)
    follower = changed(current, later, pairing)
    assert sorted(ids(follower.apply(markers(*ended)))) == sorted(
        number for number, _, source, _ in ended if number in ids(kept)
    )
    new = [start(number, name) for number, name in ((5, "step"), (6, "load"))]
    expected = record_filter(later).apply(markers(*new, end(5), end(6)))
    assert ids(follower.apply(markers(*new, end(5), end(6)))) == ids(expected)


def test_an_end_that_came_before_its_start_outlives_a_change_of_the_filter() -> None:
    current = record_filter("Marker:step")
    assert len(current.apply(markers(end(1), end(2)))) == 0
    current = changed(current, "Marker:load")
    assert ids(current.apply(markers(start(1, "load"), start(2, "step")))) == [1, 1]


def test_a_filter_that_was_changed_twice_still_knows_what_the_first_one_kept() -> None:
    current = record_filter("Marker:step")
    current.apply(markers(start(1, "step"), start(2, "load")))
    current = changed(changed(current, "Kernel:MatMul"), "")
    assert ids(current.apply(markers(end(1), end(2), start(3, "load"), end(3)))) == [1, 3, 3]
