"""Pairing of markers in any order, across batches, with bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind, MarkerFlag, SourceKind
from msmon.records.markers import LATE_BATCHES, MarkerEvents, MarkerPairing

HOST, DEVICE = SourceKind.HOST, SourceKind.DEVICE

Row = dict[str, Any]


def row(number: int, flag: MarkerFlag, source: SourceKind, time_ns: int, **values: Any) -> Row:
    fields = {
        "id": number,
        "flag": flag,
        "source_kind": source,
        "timestamp_ns": time_ns,
        "process_or_device_id": 100 if source == HOST else 3,
        "thread_or_stream_id": 200 if source == HOST else 5,
        "name": "",
        "domain": "",
    }
    return {**fields, **values}


def markers(*rows: Row) -> Batch:
    strings = ("", *dict.fromkeys(text for item in rows for text in (item["name"], item["domain"])))
    records = np.zeros(len(rows), DTYPES[ActivityKind.Marker])
    records["kind"] = ActivityKind.Marker
    for place, item in enumerate(rows):
        for field, value in item.items():
            records[field][place] = strings.index(value) if isinstance(value, str) else value
    return Batch(ActivityKind.Marker, records, strings)


def host_range(number: int, start_ns: int, end_ns: int, name: str, domain: str = "d") -> list[Row]:
    return [
        row(number, MarkerFlag.START, HOST, start_ns, name=name, domain=domain),
        row(number, MarkerFlag.END, HOST, end_ns, thread_or_stream_id=201),
    ]


def device_range(number: int, start_ns: int, end_ns: int, name: str) -> list[Row]:
    return [
        row(number, MarkerFlag.START_WITH_DEVICE, HOST, start_ns, name=name, domain="default"),
        row(number, MarkerFlag.START_WITH_DEVICE, DEVICE, start_ns + 50),
        row(number, MarkerFlag.END_WITH_DEVICE, HOST, end_ns),
        row(number, MarkerFlag.END_WITH_DEVICE, DEVICE, end_ns + 50),
    ]


def mark(number: int, time_ns: int, name: str) -> list[Row]:
    return [row(number, MarkerFlag.INSTANTANEOUS, HOST, time_ns, name=name, domain="default")]


def device_mark(number: int, time_ns: int, name: str) -> list[Row]:
    flag = MarkerFlag.INSTANTANEOUS_WITH_DEVICE
    return [
        row(number, flag, HOST, time_ns, name=name, domain="default"),
        row(number, flag, DEVICE, time_ns + 9),
    ]


def words(events: MarkerEvents) -> list[tuple[Any, ...]]:
    """(id, source, name, domain, start, end, instantaneous) of each event, sorted."""
    return sorted(
        (
            int(event["id"]),
            int(event["source_kind"]),
            events.strings[event["name"]],
            events.strings[event["domain"]],
            int(event["start_ns"]),
            int(event["end_ns"]),
            bool(event["instantaneous"]),
        )
        for event in events.events
    )


def test_host_range_carries_both_threads() -> None:
    (event,) = MarkerPairing().add(markers(*host_range(1, 10, 30, "step"))).events
    assert (event["start_ns"], event["end_ns"]) == (10, 30)
    assert (event["process_id"], event["thread_id"]) == (100, 200)
    assert (event["end_process_id"], event["end_thread_id"]) == (100, 201)
    assert (event["device_id"], event["stream_id"]) == (-1, -1)


def test_device_range_takes_name_domain_and_thread_from_the_host_start() -> None:
    events = MarkerPairing().add(markers(*device_range(1, 10, 30, "step")))
    assert words(events) == [
        (1, HOST, "step", "default", 10, 30, False),
        (1, DEVICE, "step", "default", 60, 80, False),
    ]
    device = events.events[events.events["source_kind"] == DEVICE][0]
    assert (device["device_id"], device["stream_id"]) == (3, 5)
    assert (device["process_id"], device["thread_id"]) == (100, 200)


def test_nested_and_overlapping_ranges_pair_by_id() -> None:
    outer, inner, crossing = (
        host_range(1, 0, 100, "outer"),
        host_range(2, 10, 20, "inner"),
        host_range(3, 15, 120, "crossing"),
    )
    rows = [outer[0], inner[0], crossing[0], inner[1], outer[1], crossing[1]]
    assert words(MarkerPairing().add(markers(*rows))) == [
        (1, HOST, "outer", "d", 0, 100, False),
        (2, HOST, "inner", "d", 10, 20, False),
        (3, HOST, "crossing", "d", 15, 120, False),
    ]


@given(data=st.data())
def test_any_order_and_any_batches_give_the_same_events(data: st.DataObject) -> None:
    makers = {"host": host_range, "device": device_range}
    rows: list[Row] = []
    expected = []
    big = data.draw(st.sampled_from([0, 2**40, 2**64 - 20]))
    for number in range(big, big + data.draw(st.integers(0, 10))):
        shape = data.draw(st.sampled_from(["host", "device", "mark", "device mark"]))
        name = data.draw(st.sampled_from(["", "a", "b\udcff"]))
        start_ns, end_ns = data.draw(st.tuples(st.integers(0, 2**63), st.integers(0, 2**63)))
        if shape in makers:
            made = makers[shape](number, start_ns, end_ns, name)
            domain = made[0]["domain"]
            expected.append((number, HOST, name, domain, start_ns, end_ns, False))
            if shape == "device":
                expected.append((number, DEVICE, name, domain, start_ns + 50, end_ns + 50, False))
        else:
            made = (mark if shape == "mark" else device_mark)(number, start_ns, name)
            expected.append((number, HOST, name, "default", start_ns, start_ns, True))
            if shape == "device mark":
                end_ns = start_ns + 9
                expected.append((number, DEVICE, name, "default", end_ns, end_ns, True))
        rows += made
    rows = data.draw(st.permutations(rows))
    pairing = MarkerPairing()
    events = []
    while rows:
        size = data.draw(st.integers(1, 8))
        completed = pairing.add(markers(*rows[:size]))
        events += words(completed)
        rows = rows[size:]
    assert sorted(events) == sorted(expected)
    last = pairing.add(markers())
    assert (last.open_ranges, last.orphan_ends, last.evicted_starts) == (0, 0, 0)


def test_open_ranges_are_told() -> None:
    pairing = MarkerPairing()
    assert pairing.add(markers(host_range(1, 1, 2, "open")[0])).open_ranges == 1
    assert pairing.add(markers(host_range(1, 1, 2, "open")[1])).open_ranges == 0


def test_end_without_a_start_is_counted_once_no_buffer_can_bring_the_start() -> None:
    pairing = MarkerPairing()
    counted = [pairing.add(markers(host_range(1, 1, 2, "x")[1])).orphan_ends]
    counted += [pairing.add(markers()).orphan_ends for _ in range(2 * LATE_BATCHES)]
    assert counted[:LATE_BATCHES] == [0] * LATE_BATCHES
    assert sum(counted) == 1


def test_device_range_without_a_host_start_is_counted() -> None:
    pairing = MarkerPairing()
    rows = [item for item in device_range(1, 1, 2, "x") if item["source_kind"] == DEVICE]
    counted = [pairing.add(batch).orphan_ends for batch in [markers(*rows)] + [markers()] * 100]
    assert sum(counted) == 2


def test_starts_without_an_end_are_bounded_and_the_oldest_go_first() -> None:
    pairing = MarkerPairing(limit=10)
    starts = [host_range(number, number, 99, f"range {number}")[0] for number in range(1, 16)]
    events = pairing.add(markers(*starts))
    assert (events.evicted_starts, events.open_ranges) == (5, 10)
    ends = [host_range(number, 0, 99, "")[1] for number in range(1, 16)]
    completed = pairing.add(markers(*ends))
    assert [name for _, _, name, *_ in words(completed)] == [f"range {n}" for n in range(6, 16)]


def test_an_open_range_outlives_any_number_of_finished_ones_whose_device_part_never_comes() -> None:
    pairing = MarkerPairing(limit=50)
    events = pairing.add(markers(host_range(0, 1, 2, "outer")[0]))
    for batch in range(30):
        numbers = range(1 + 10 * batch, 11 + 10 * batch)
        rows = [item for number in numbers for item in device_range(number, 1, 2, "inner")]
        events = pairing.add(markers(*(item for item in rows if item["source_kind"] == HOST)))
        assert (len(events), events.evicted_starts, events.orphan_ends) == (10, 0, 0)
    assert events.open_ranges == 1
    completed = pairing.add(markers(host_range(0, 1, 9, "")[1]))
    assert words(completed) == [(0, HOST, "outer", "d", 1, 9, False)]


def test_an_open_range_outlives_any_number_of_device_ranges_that_lack_their_end() -> None:
    pairing = MarkerPairing(limit=50)
    pairing.add(markers(host_range(0, 1, 2, "epoch")[0]))
    for batch in range(30):
        numbers = range(1 + 10 * batch, 11 + 10 * batch)
        rows = [item for number in numbers for item in device_range(number, 1, 2, "inner")[:3]]
        assert pairing.add(markers(*rows)).evicted_starts == 0
    completed = pairing.add(markers(host_range(0, 1, 9, "")[1]))
    assert words(completed) == [(0, HOST, "epoch", "d", 1, 9, False)]


def test_a_device_range_whose_name_had_to_go_is_counted() -> None:
    pairing = MarkerPairing(limit=1)
    host = [item for item in device_range(1, 1, 2, "a") if item["source_kind"] == HOST]
    device = [item for item in device_range(1, 1, 2, "a") if item["source_kind"] == DEVICE]
    pairing.add(markers(*host))
    pairing.add(markers(host_range(2, 1, 2, "pushes the name of 1 out")[0]))
    counted = [pairing.add(batch) for batch in [markers(*device)] + [markers()] * LATE_BATCHES]
    assert [events for events in counted if len(events)] == []
    assert sum(events.orphan_ends for events in counted) == 2


def test_doubled_records_are_counted_and_the_first_one_wins() -> None:
    first, end = host_range(1, 10, 30, "first")
    second, _ = host_range(1, 20, 30, "second")
    events = MarkerPairing().add(markers(first, second, end))
    assert words(events) == [(1, HOST, "first", "d", 10, 30, False)]
    assert events.orphan_ends == 1


def test_texts_of_finished_ranges_are_forgotten() -> None:
    pairing = MarkerPairing()
    pairing.add(markers(host_range(0, 1, 2, "open")[0]))
    for batch in range(20):
        numbers = range(1 + batch * 500, 1 + (batch + 1) * 500)
        rows = [item for number in numbers for item in host_range(number, 1, 2, f"step {number}")]
        events = pairing.add(markers(*rows))
        assert len(events.strings) <= 502
    assert pairing.texts_kept < 6000
    assert words(pairing.add(markers(host_range(0, 1, 2, "")[1]))) == [
        (0, HOST, "open", "d", 1, 2, False)
    ]
