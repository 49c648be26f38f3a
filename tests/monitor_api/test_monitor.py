"""The Monitor API over the C library double: real native threads, real callbacks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from msmon import ActivityKind, Monitor
from msmon.errors import CommandRefused, LibraryUnavailable, SinkError, UsageError
from msmon.ffi import decode as decode_module
from msmon.ffi.arena import BufferArena
from msmon.recording import recording
from msmon.recording.recorder import Recorder
from msmon.records.batch import Batch
from msmon.records.record_filter import RecordFilter

Kernel, API, MemCpy = ActivityKind.Kernel, ActivityKind.API, ActivityKind.MemCpy


@pytest.fixture
def monitor(native_double: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitor]:
    arena = BufferArena(slot_count=8, slot_bytes=1 << 20)
    monkeypatch.setattr(
        recording,
        "open_recorder",
        lambda purpose: (Recorder(native_double.mspti, arena, purpose), "the C library double"),
    )
    made = Monitor()
    yield made
    made.stop()


def test_every_record_between_start_and_stop_is_there(monitor: Monitor, native_double: Any) -> None:
    monitor.start([Kernel, API])
    native_double.start_recording(2, [Kernel, API], records_each=20_000)
    native_double.join_recording()
    monitor.stop()
    native_double.record(Kernel, 5)
    result = monitor.get_result()
    assert {kind: len(records) for kind, records in result.items()} == {
        Kernel: 20_000,
        API: 20_000,
    }
    assert not monitor.lost
    assert not monitor.problems


def test_records_arrive_while_it_runs(
    monitor: Monitor, native_double: Any, wait_for: Callable[..., Any]
) -> None:
    monitor.start([Kernel])
    native_double.record(Kernel, 3)
    wait_for(lambda: len(monitor.get_result()[Kernel]) == 3, "three kernels before stop")
    native_double.record(Kernel, 4)
    monitor.flush()
    assert len(monitor.get_result()[Kernel]) == 7
    assert monitor.running


def test_a_second_run_starts_empty(monitor: Monitor, native_double: Any) -> None:
    monitor.start([Kernel])
    native_double.record(Kernel, 3)
    monitor.stop()
    monitor.start(["API"])
    native_double.record(API, 2)
    monitor.stop()
    assert {kind: len(records) for kind, records in monitor.get_result().items()} == {API: 2}


def thread_names() -> set[str]:
    names = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            names.add(path.read_text().strip())
    return names


def test_the_duration_ends_it(monitor: Monitor, wait_for: Callable[..., Any]) -> None:
    monitor.start([Kernel], duration=0.05)
    wait_for(lambda: not monitor.running, "the end of the duration")
    monitor.stop()
    assert monitor.get_result()[Kernel].to_numpy()["name"].shape == (0,)
    wait_for(lambda: "msmon-recording" not in thread_names(), "the end of its thread")


def test_more_than_max_records_is_dropped_and_counted(monitor: Monitor, native_double: Any) -> None:
    monitor.start([Kernel, API], max_records=100)
    native_double.record(Kernel, 80)
    monitor.flush()
    native_double.record(API, 50)
    monitor.stop()
    result = monitor.get_result()
    assert (len(result[Kernel]), len(result[API])) == (80, 20)
    assert monitor.dropped == {"API": 30}


def test_a_filter_keeps_what_it_names(monitor: Monitor, native_double: Any) -> None:
    monitor.start(filter="Kernel:no kernel has this name")
    native_double.record(Kernel, 10)
    monitor.stop()
    assert {kind: len(records) for kind, records in monitor.get_result().items()} == {Kernel: 0}


def test_as_a_context_manager(monitor: Monitor, native_double: Any) -> None:
    with Monitor([Kernel]) as inner:
        native_double.record(Kernel, 2)
        assert inner.running
    assert not inner.running
    assert len(inner.get_result()[Kernel]) == 2


def test_two_at_a_time_are_refused_and_the_holder_named(monitor: Monitor) -> None:
    monitor.start([Kernel])
    with pytest.raises(CommandRefused, match="the Monitor API is already recording"):
        Monitor().start([Kernel])
    with pytest.raises(CommandRefused, match="already recording"):
        monitor.start([Kernel])
    assert monitor.running


def test_wrong_arguments_are_refused_before_anything_starts(monitor: Monitor) -> None:
    for arguments in (
        {"kinds": []},
        {"kinds": [99]},
        {"kinds": 5},
        {"kinds": ["Kernal"]},
        {"filter": "Kernel"},
        {"duration": -1},
        {"max_records": 0},
    ):
        with pytest.raises(UsageError):
            monitor.start(**arguments)  # type: ignore[arg-type]
    assert not monitor.running


def test_without_a_library_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(purpose: str) -> Any:
        raise LibraryUnavailable("libmspti.so was not found")

    monkeypatch.setattr(recording, "open_recorder", absent)
    monitor = Monitor()
    with pytest.raises(LibraryUnavailable):
        monitor.start([Kernel])
    with pytest.raises(UsageError, match="nothing was collected"):
        monitor.get_result()


def test_record_objects_carry_the_documented_attributes(
    monitor: Monitor, native_double: Any
) -> None:
    monitor.start([Kernel])
    native_double.record(Kernel, 3)
    monitor.stop()
    records = monitor.get_result()[Kernel]
    columns = records.to_numpy()
    last = records[-1]
    assert (last.startNs, last.endNs) == (columns["start_ns"][2], columns["end_ns"][2])
    assert last.to_tuple() == (
        last.name, last.startNs / 1000, last.endNs / 1000, last.deviceId, last.streamId,
        last.correlationId, last.type,
    )  # fmt: skip
    assert [item.name for item in records] == list(columns["name"])
    assert records[0:2] == list(records)[0:2]
    with pytest.raises(IndexError):
        _ = records[3]


def test_results_as_arrow_tables(monitor: Monitor, native_double: Any) -> None:
    pytest.importorskip("pyarrow")
    monitor.start([Kernel, API])
    native_double.record(Kernel, 3)
    monitor.flush()
    native_double.record(Kernel, 2)
    monitor.stop()
    result = monitor.get_result()
    table = result[Kernel].to_arrow()
    assert table.num_rows == 5
    assert table["name"].to_pylist() == [item.name for item in result[Kernel]]
    assert result[API].to_arrow().num_rows == 0


def sheet_lengths(path: Path) -> dict[str, int]:
    book = openpyxl.load_workbook(path, read_only=True)
    lengths = {sheet.title: len(list(sheet.iter_rows())) for sheet in book}
    book.close()
    return lengths


def test_save_appends_the_suffix_and_makes_folders(
    monitor: Monitor, native_double: Any, tmp_path: Path
) -> None:
    monitor.start([Kernel, API])
    native_double.record(Kernel, 3)
    monitor.flush()
    while_running = monitor.save(tmp_path / "a" / "b" / "out")
    assert while_running == tmp_path / "a" / "b" / "out.xlsx"
    assert sheet_lengths(while_running) == {"API": 1, "Kernel": 4}
    native_double.record(Kernel, 1)
    monitor.stop()
    again = monitor.save(str(while_running))
    assert sheet_lengths(again) == {"API": 1, "Kernel": 5}
    assert os.listdir(again.parent) == ["out.xlsx"]


def test_save_refuses_bad_paths_and_leaves_nothing(monitor: Monitor, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing was collected"):
        monitor.save(tmp_path / "early.xlsx")
    monitor.start([Kernel])
    monitor.stop()
    (tmp_path / "folder.xlsx").mkdir()
    (tmp_path / "file").write_text("")
    for path in ("", "x" * 5000):
        with pytest.raises((UsageError, SinkError)):
            monitor.save(path)
    for path in ("folder.xlsx", "file/below.xlsx"):
        with pytest.raises(SinkError):
            monitor.save(tmp_path / path)
    assert sorted(os.listdir(tmp_path / ".")) == ["double.so", "file", "folder.xlsx"]


def test_save_with_no_records_gives_headers(monitor: Monitor, tmp_path: Path) -> None:
    monitor.start([Kernel, ActivityKind.Marker])
    monitor.stop()
    assert sheet_lengths(monitor.save(tmp_path / "empty")) == {"Marker": 1, "Kernel": 1}


def test_start_without_arguments_does_what_the_constructor_was_told(
    monitor: Monitor, native_double: Any
) -> None:
    told = Monitor([Kernel], max_records=3)
    told.start()
    native_double.record(Kernel, 5)
    told.stop()
    assert {kind: len(records) for kind, records in told.get_result().items()} == {Kernel: 3}
    told.start([API])
    told.stop()
    assert set(told.get_result()) == {API}


@pytest.mark.parametrize(
    "arguments",
    [
        {"kinds": []},
        {"kinds": [99]},
        {"kinds": ["kernel"]},
        {"kinds": 5},
        {"filter": "Kernel"},
        {"filter": None},
        {"duration": -1},
        {"duration": float("nan")},
        {"max_records": 0},
        {"max_records": 1.5},
    ],
)
def test_a_wrong_argument_is_refused_when_it_is_given(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Monitor(**arguments)


@pytest.mark.parametrize(
    "name", ["", None, 5, b"bytes.xlsx", "nul\0.xlsx", "folder", "folder/", "new/"]
)
def test_what_is_no_file_is_refused_and_nothing_is_written(
    monitor: Monitor, native_double: Any, tmp_path: Path, monkeypatch: Any, name: Any
) -> None:
    working = tmp_path / "working"
    (working / "folder").mkdir(parents=True)
    monkeypatch.chdir(working)
    monitor.start([Kernel])
    native_double.record(Kernel, 1)
    monitor.stop()
    with pytest.raises((UsageError, SinkError)):
        monitor.save(name)
    assert [path.name for path in working.rglob("*")] == ["folder"]


def test_flush_does_nothing_when_not_recording(monitor: Monitor) -> None:
    monitor.flush()
    assert not monitor.running
    monitor.start([Kernel])
    monitor.stop()
    monitor.flush()
    assert not monitor.running
    assert not monitor.problems


def test_records_that_cannot_be_filtered_are_counted_and_the_rest_is_kept(
    monitor: Monitor, native_double: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = RecordFilter.apply

    def fail_for_api(self: RecordFilter, batch: Batch) -> Batch:
        if batch.kind is API:
            raise ZeroDivisionError("unforeseen")
        return apply(self, batch)

    monkeypatch.setattr(RecordFilter, "apply", fail_for_api)
    monitor.start([Kernel, API])
    native_double.record(Kernel, 3)
    native_double.record(API, 4)
    monitor.stop()
    result = monitor.get_result()
    assert (len(result[Kernel]), len(result[API])) == (3, 0)
    assert monitor.lost == {"decode": 4}
    assert monitor.problems == ("internal error: ZeroDivisionError('unforeseen')",)


def test_records_that_cannot_be_decoded_are_counted_and_the_rest_is_kept(
    monitor: Monitor, native_double: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = decode_module._batch

    def fail_for_api(kind: ActivityKind, *arguments: Any) -> Batch:
        if kind is API:
            raise MemoryError("a very long text")
        return real(kind, *arguments)

    monkeypatch.setattr(decode_module, "_batch", fail_for_api)
    monitor.start([Kernel, API])
    native_double.record(Kernel, 3)
    native_double.record(API, 4)
    monitor.stop()
    assert len(monitor.get_result()[Kernel]) == 3
    assert monitor.lost == {"decode": 4}
    assert "a very long text" in monitor.problems[0]


def test_a_consumer_that_fails_does_not_end_the_recording(
    monitor: Monitor, native_double: Any, wait_for: Callable[..., Any]
) -> None:
    taken: list[int] = []

    def take(batches: list[Batch]) -> None:
        if batches and not taken:
            taken.append(0)
            raise ValueError("not this one")
        taken.extend(map(len, batches))

    failing = recording.Recording("a test", take)
    failing.start(frozenset({Kernel}))
    native_double.record(Kernel, 3)
    wait_for(lambda: failing.problems, "the failure")
    native_double.record(Kernel, 4)
    failing.stop()
    assert taken == [0, 4]
    assert failing.problems == ("internal error: ValueError('not this one')",)
