"""Traces keep the rules of the trace-event format, so that viewers draw all of it."""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msmon.conversion.targets import event_order
from msmon.conversion.targets.perfetto import PerfettoTrace
from msmon.conversion.targets.tracks import MAX_LANES, SeenIds
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES, EVENT_DTYPE
from msmon.records.kinds import ActivityKind, MarkerFlag
from msmon.records.markers import MarkerEvents, MarkerPairing
from msmon.sessions import ProcessInfo

START_NS = 1_790_000_000_000_000_123
API, Kernel, Marker = ActivityKind.API, ActivityKind.Kernel, ActivityKind.Marker


def batch(kind: ActivityKind, rows: list[dict[str, Any]], *strings: str) -> Batch:
    records = np.zeros(len(rows), DTYPES[kind])
    records["kind"] = kind
    for place, row in enumerate(rows):
        for field, value in row.items():
            records[field][place] = value
    return Batch(kind, records, ("", *strings))


def calls_and_kernels() -> list[Batch]:
    calls = [
        {
            "start_ns": START_NS + number * 1000,
            "end_ns": START_NS + number * 1000 + 501,
            "process_id": 9,
            "thread_id": 10,
            "correlation_id": number + 1,
            "name": 1,
        }
        for number in range(20)
    ]
    kernels = [
        {
            "start_ns": call["start_ns"] + 5000,
            "end_ns": call["start_ns"] + 5999,
            "device_id": 1,
            "stream_id": 2,
            "correlation_id": call["correlation_id"],
            "name": 1,
            "type": 2,
        }
        for call in calls
    ]
    return [batch(API, calls, 'launch "x"'), batch(Kernel, kernels, "MatMul\x01名", "CUBE")]


def ranges(*spans: tuple[int, int]) -> Batch:
    rows = []
    for number, (start_us, end_us) in enumerate(spans, start=1):
        for flag, time_us in ((MarkerFlag.START, start_us), (MarkerFlag.END, end_us)):
            place = {"process_or_device_id": 9, "thread_or_stream_id": 10}
            time_ns = START_NS + time_us * 1000
            rows.append({"flag": flag, "id": number, "timestamp_ns": time_ns, "name": 1, **place})
    return batch(Marker, sorted(rows, key=lambda row: row["timestamp_ns"]), "range")


def events(*spans_us: tuple[int, int]) -> MarkerEvents:
    """Finished ranges, in this order."""
    rows = np.zeros(len(spans_us), EVENT_DTYPE)
    for number, (start_us, end_us) in enumerate(spans_us):
        times = (START_NS + start_us * 1000, START_NS + end_us * 1000)
        for field, value in zip(
            ("id", "start_ns", "end_ns", "thread_id"), (number + 1, *times, 10)
        ):
            rows[field][number] = value
    return MarkerEvents(rows, ("",))


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(), parse_float=Decimal)
    return document


@pytest.fixture
def two_ranks(tmp_path: Path) -> dict[str, Any]:
    trace = PerfettoTrace(tmp_path / "trace.json")
    for rank in range(2):
        process = trace.process(ProcessInfo("host-a", 100, 1, rank=rank))
        for item in calls_and_kernels():
            process.write(item)
        process.write_markers(MarkerPairing().add(ranges((0, 50), (10, 20), (40, 70), (60, 65))))
    trace.close()
    return load(tmp_path / "trace.json")


def slices_by_track(document: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    tracks = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def test_times_are_exact_once_the_base_is_added(two_ranks: dict[str, Any]) -> None:
    base_ns = int(two_ranks["otherData"]["base_ns"])
    (first, *_) = [event for event in two_ranks["traceEvents"] if event["ph"] == "X"]
    assert base_ns + first["ts"] * 1000 == START_NS
    assert first["dur"] * 1000 == 501
    assert float(first["ts"]) == float(str(first["ts"]))


def test_every_process_and_thread_has_a_name_of_its_own(two_ranks: dict[str, Any]) -> None:
    events = two_ranks["traceEvents"]
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"].endswith("_name")
    }
    processes = [name for (what, _, _), name in names.items() if what == "process_name"]
    assert sorted(processes) == [
        "rank 0 (pid 100 host-a)", "rank 0 (pid 100 host-a) device 1",
        "rank 1 (pid 100 host-a)", "rank 1 (pid 100 host-a) device 1",
    ]  # fmt: skip
    threads = {tid: name for (what, _, tid), name in names.items() if what == "thread_name"}
    for pid, tid in slices_by_track(two_ranks):
        assert tid in threads
        assert ("process_name", pid, pid) in names
    assert {"thread 10 API", "stream 2", "thread 10 markers"} <= set(threads.values())


def test_slices_of_a_track_nest(two_ranks: dict[str, Any]) -> None:
    for events in slices_by_track(two_ranks).values():
        open_ends: list[Decimal] = []
        for event in sorted(events, key=lambda item: (item["ts"], -item["dur"])):
            end = event["ts"] + event["dur"]
            while open_ends and open_ends[-1] <= event["ts"]:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


def test_ranges_that_overlap_too_many_others_are_counted_instead_of_drawn(tmp_path: Path) -> None:
    trace = PerfettoTrace(tmp_path / "trace.json")
    process = trace.process(ProcessInfo("h", 1, 1))
    crossing = [(number, 1000 + number) for number in range(MAX_LANES + 10)]
    process.write_markers(MarkerPairing().add(ranges(*crossing, (5000, 5001))))
    trace.close()
    tracks = slices_by_track(load(tmp_path / "trace.json"))
    assert len(tracks) == MAX_LANES
    assert sum(map(len, tracks.values())) == MAX_LANES + 1
    assert (process.no_place, process.untimed) == (10, 0)


def nests(spans: list[tuple[int, int]]) -> bool:
    open_ends: list[int] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            return False
        open_ends.append(end)
    return True


@pytest.mark.parametrize("held", [20, 1 << 16])
def test_ranges_in_any_order_never_overlap_in_part_on_a_track(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(event_order, "HELD_EVENTS", held)
    random = np.random.default_rng(5)
    spans = [
        (start, start + length) for start, length in random.integers(1, 900, (2000, 2)).tolist()
    ]
    trace = PerfettoTrace(tmp_path / "trace.json")
    process = trace.process(ProcessInfo("h", 1, 1))
    for first in range(0, len(spans), 150):
        process.write_markers(events(*spans[first : first + 150]))
    trace.close()
    tracks = slices_by_track(load(tmp_path / "trace.json"))
    drawn = [
        [(int(item["ts"]), int(item["ts"] + item["dur"])) for item in track]
        for track in tracks.values()
    ]
    assert all(nests(track) for track in drawn)
    assert sum(map(len, drawn)) == len(spans) - process.no_place


def test_ranges_that_nest_share_a_track_whatever_their_order(tmp_path: Path) -> None:
    trace = PerfettoTrace(tmp_path / "trace.json")
    process = trace.process(ProcessInfo("h", 1, 1))
    nested = [(step * 100, step * 100 + 90) for step in range(500)]
    nested += [(start + 10 * part, start + 10 * part + 8) for start, _ in nested for part in (1, 4)]
    nested += [(0, 50_000)]
    np.random.default_rng(6).shuffle(nested)
    for first in range(0, len(nested), 100):
        process.write_markers(events(*nested[first : first + 100]))
    trace.close()
    (track,) = slices_by_track(load(tmp_path / "trace.json")).values()
    assert len(track) == len(nested)


def test_an_early_counter_costs_its_own_record_only(tmp_path: Path) -> None:
    trace = PerfettoTrace(tmp_path / "trace.json")
    process = trace.process(ProcessInfo("h", 1, 1))
    process.write(batch(Kernel, [{"start_ns": 5_000_000, "end_ns": 5_000_900}]))
    rows = [{"start_ns": START_NS + at, "end_ns": START_NS + at + 9} for at in range(0, 10_000, 10)]
    rows[7]["end_ns"] = 2**64 - 1
    process.write(batch(Kernel, rows))
    trace.close()
    (track,) = slices_by_track(load(tmp_path / "trace.json")).values()
    assert (len(track), process.untimed) == (999, 2)


def test_a_first_record_of_a_wrong_clock_leaves_the_others_exact(tmp_path: Path) -> None:
    trace = PerfettoTrace(tmp_path / "trace.json")
    process = trace.process(ProcessInfo("h", 1, 1))
    years_ns = 12 * 365 * 86_400 * 10**9
    starts = [START_NS - years_ns, START_NS, START_NS + 1]
    process.write(batch(Kernel, [{"start_ns": start, "end_ns": start + 1} for start in starts]))
    trace.close()
    document = load(tmp_path / "trace.json")
    (track,) = slices_by_track(document).values()
    base_ns = int(document["otherData"]["base_ns"])
    assert [base_ns + int(item["ts"] * 1000) for item in track] == starts


def test_arrows_lead_from_each_call_to_its_kernel(two_ranks: dict[str, Any]) -> None:
    events = two_ranks["traceEvents"]
    tracks = slices_by_track(two_ranks)
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    finishes = {event["id"]: event for event in events if event["ph"] == "f"}
    assert len(starts) == 40
    assert set(starts) == set(finishes)
    for number, start in starts.items():
        assert number < 2**53
        finish = finishes[number]
        assert finish["bp"] == "e"
        assert (start["name"], start["cat"]) == (finish["name"], finish["cat"])
        ends = []
        for event in (start, finish):
            (around,) = [
                item
                for item in tracks[event["pid"], event["tid"]]
                if item["ts"] <= event["ts"] <= item["ts"] + item["dur"]
            ]
            ends.append(around["args"]["correlation_id"])
        assert ends[0] == ends[1]


def test_only_one_arrow_begins_per_correlation_id(tmp_path: Path) -> None:
    trace = PerfettoTrace(tmp_path / "trace.json")
    process = trace.process(ProcessInfo("h", 1, 1))
    calls, kernels = calls_and_kernels()
    process.write(calls)
    process.write(calls)
    process.write(kernels)
    trace.close()
    phases = [event["ph"] for event in load(tmp_path / "trace.json")["traceEvents"]]
    assert phases.count("s") == 20


def test_every_kind_can_be_drawn_and_what_has_no_time_is_counted(tmp_path: Path) -> None:
    trace = PerfettoTrace(tmp_path / "trace.json")
    process = trace.process(ProcessInfo("h", 1, 1))
    process.write(calls_and_kernels()[0])
    for kind in ActivityKind:
        if kind is Marker:
            continue
        row: dict[str, Any] = {"start_ns": START_NS, "end_ns": START_NS + 5}
        if kind is ActivityKind.ExternalCorrelation:
            row = {"external_id": 1}
        if kind is ActivityKind.Hccl:
            row["bandwidth_gb_per_s"] = float("nan")
        process.write(batch(kind, [row]))
    assert (process.no_place, process.untimed) == (1, 0)
    process.write(batch(Kernel, [{"start_ns": 5, "end_ns": 6}, {"start_ns": START_NS}]))
    assert (process.no_place, process.untimed) == (1, 2)
    trace.close()
    text = (tmp_path / "trace.json").read_text()
    assert "NaN" not in text
    drawn = {event.get("cat") for event in json.loads(text)["traceEvents"] if event["ph"] == "X"}
    assert drawn == {kind.name for kind in ActivityKind} - {"Marker", "ExternalCorrelation"}


def test_an_empty_trace_is_valid_and_a_discarded_one_leaves_nothing(tmp_path: Path) -> None:
    PerfettoTrace(tmp_path / "empty.json").close()
    assert load(tmp_path / "empty.json")["traceEvents"] == []
    PerfettoTrace(tmp_path / "gone.json").discard()
    assert [path.name for path in tmp_path.iterdir()] == ["empty.json"]


def test_seen_ids_tells_new_from_known() -> None:
    seen = SeenIds()
    ids = [1, 2, 65_535, 65_536, 2**64 - 1, 2**63]
    assert all(seen.add(number) for number in ids)
    assert not any(seen.add(number) for number in ids)
