"""Workbooks keep every record, number and text exactly."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path

import numpy as np
import openpyxl
import pytest

from msmon.errors import SinkError
from msmon.formats.workbook import WorkbookWriter
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind, MarkerFlag, SourceKind
from msmon.records.markers import MarkerPairing

START_NS = 1_700_000_000_123_456_789


def kernels(count: int, names: tuple[str, ...] = ("", "MatMul", "Cube"), name: int = 1) -> Batch:
    records = np.zeros(count, DTYPES[ActivityKind.Kernel])
    records["kind"] = ActivityKind.Kernel
    records["start_ns"] = START_NS + np.arange(count, dtype=np.uint64) * 1001
    records["end_ns"] = records["start_ns"] + np.uint64(1500)
    records["device_id"] = 3
    records["stream_id"] = 2**32 - 1
    records["correlation_id"] = 2**64 - 1 - np.arange(count, dtype=np.uint64)
    records["name"] = name
    records["type"] = 2
    return Batch(ActivityKind.Kernel, records, names)


def api_calls(count: int) -> Batch:
    records = np.zeros(count, DTYPES[ActivityKind.API])
    records["kind"] = ActivityKind.API
    records["start_ns"] = START_NS
    records["end_ns"] = START_NS + 10
    records["thread_id"] = np.arange(count)
    records["name"] = 1
    return Batch(ActivityKind.API, records, ("", "aclrtLaunch"))


def rows_of(path: Path, sheet: str) -> list[tuple[object, ...]]:
    book = openpyxl.load_workbook(path, read_only=True)
    try:
        return [tuple(row) for row in book[sheet].iter_rows(values_only=True)]
    finally:
        book.close()


def sheet_names(path: Path) -> list[str]:
    book = openpyxl.load_workbook(path, read_only=True)
    try:
        return list(book.sheetnames)
    finally:
        book.close()


def test_numbers_keep_nanoseconds_and_64_bit_ids(tmp_path: Path) -> None:
    path = tmp_path / "out.xlsx"
    with WorkbookWriter(path) as book:
        book.write(kernels(3))
    header, first, *rest = rows_of(path, "Kernel")
    assert header == (
        "Name", "Start(us)", "End(us)", "Device ID", "Stream ID", "Correlation ID", "Type",
        "Duration(us)",
    )  # fmt: skip
    assert Decimal(str(first[1])) * 1000 == START_NS
    assert Decimal(str(first[2])) * 1000 == START_NS + 1500
    assert first[3:5] == (3, 2**32 - 1)
    assert first[5] == str(2**64 - 1)
    assert first[7] == 1.5
    assert len(rest) == 2


def test_texts_come_out_exactly_as_given(tmp_path: Path) -> None:
    texts = (
        "", "=1+1", "{=SUM(A1)}", "http://a.example/x", "internal:x", "12", "<r>a</r>",
        " spaced ", "_x0041_", "a\x01b", "tab\tline\nend", "名前", "mailto:a@b", "'quoted", "=",
    )  # fmt: skip
    path = tmp_path / "out.xlsx"
    with WorkbookWriter(path) as book:
        for number in range(1, len(texts)):
            book.write(kernels(1, texts, number))
    names = [row[0] for row in rows_of(path, "Kernel")[1:]]
    unescaped = [openpyxl.utils.escape.unescape(str(name)) for name in names]
    assert unescaped == list(texts[1:])


def test_bytes_that_are_no_text_are_shown_and_not_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.xlsx"
    with WorkbookWriter(path) as book:
        book.write(kernels(1, ("", "bad\udcff\ufffe", "t")))
    assert rows_of(path, "Kernel")[1][0] == "bad\\xff\\ufffe"


@pytest.mark.parametrize("character", ["x", "\U0001f600"])
def test_a_text_too_long_for_a_cell_stands_whole_in_its_own_sheet(
    tmp_path: Path, character: str
) -> None:
    long_text = character * 70_000
    path = tmp_path / "out.xlsx"
    with WorkbookWriter(path) as book:
        book.write(kernels(2, ("", long_text, "t")))
    cells = [str(row[0]) for row in rows_of(path, "Kernel")[1:]]
    assert cells[0] == cells[1]
    assert cells[0].startswith(character * 1000)
    assert cells[0].endswith("number 1]")
    parts = rows_of(path, "Long texts")[1:]
    assert {row[0] for row in parts} == {1}
    assert "".join(str(row[2]) for row in parts) == long_text


def test_rows_past_the_limit_go_on_in_a_further_sheet(tmp_path: Path) -> None:
    path = tmp_path / "out.xlsx"
    with WorkbookWriter(path, rows_per_sheet=11) as book:
        book.write(kernels(15))
        book.write(kernels(10))
    assert sheet_names(path) == ["Kernel", "Kernel (2)", "Kernel (3)"]
    lengths = [len(rows_of(path, name)) for name in sheet_names(path)]
    assert lengths == [11, 11, 6]
    assert rows_of(path, "Kernel")[0] == rows_of(path, "Kernel (3)")[0]


def test_interleaved_kinds_lose_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "out.xlsx"
    with WorkbookWriter(path, [ActivityKind.MemCpy]) as book:
        for _ in range(20):
            book.write(kernels(7))
            book.write(api_calls(5))
    assert len(rows_of(path, "Kernel")) == 141
    assert len(rows_of(path, "API")) == 101
    assert len(rows_of(path, "MemCpy")) == 1


def test_every_kind_has_a_sheet_that_can_be_filled(tmp_path: Path) -> None:
    path = tmp_path / "out.xlsx"
    kinds = [kind for kind in ActivityKind if kind is not ActivityKind.Marker]
    with WorkbookWriter(path) as book:
        for kind in kinds:
            records = np.zeros(2, DTYPES[kind])
            records["kind"] = kind
            if "bandwidth_gb_per_s" in (records.dtype.names or ()):
                records["bandwidth_gb_per_s"] = [np.nan, np.inf]
            book.write(Batch(kind, records, ("",)))
    assert sorted(sheet_names(path)) == sorted(kind.name for kind in kinds)
    assert all(len(rows_of(path, kind.name)) == 3 for kind in kinds)
    assert [row[5] for row in rows_of(path, "Hccl")[1:]] == [None, None]


def test_what_has_no_times_has_no_duration_and_keeps_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "out.xlsx"
    batch = kernels(3)
    batch.records["start_ns"][1] = batch.records["end_ns"][1] + np.uint64(5)
    batch.records["end_ns"][2] = 2**64 - 1
    with WorkbookWriter(path) as book:
        book.write(batch)
    _, timed, *others = rows_of(path, "Kernel")
    assert (timed[7], [row[7] for row in others]) == (1.5, [None, None])
    assert others[1][2] == "18446744073709551.615"


def test_markers_show_the_ids_of_their_side_only(tmp_path: Path) -> None:
    records = np.zeros(4, DTYPES[ActivityKind.Marker])
    records["kind"] = ActivityKind.Marker
    records["id"] = 9
    records["flag"] = [MarkerFlag.START_WITH_DEVICE] * 2 + [MarkerFlag.END_WITH_DEVICE] * 2
    records["source_kind"] = [SourceKind.HOST, SourceKind.DEVICE] * 2
    records["timestamp_ns"] = START_NS + np.array([0, 5, 10, 15], np.uint64)
    records["process_or_device_id"] = [77, 2, 77, 2]
    records["thread_or_stream_id"] = [78, 4, 78, 4]
    records["name"] = [1, 0, 0, 0]
    records["domain"] = [2, 0, 0, 0]
    batch = Batch(ActivityKind.Marker, records, ("", "step", "default"))
    path = tmp_path / "out.xlsx"
    with WorkbookWriter(path) as book:
        book.write_markers(MarkerPairing().add(batch))
    by_source = {row[1]: row for row in rows_of(path, "Marker")[1:]}
    assert by_source["Host"][0] == by_source["Device"][0] == "step"
    assert by_source["Host"][6:] == (77, 78, 0, 0, 0.01)
    assert by_source["Device"][6:] == (0, 0, 2, 4, 0.01)


def test_a_failure_leaves_no_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "out.xlsx"
    path.write_text("old")

    def fail_half_way() -> None:
        with WorkbookWriter(path) as book:
            book.write(kernels(5))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.xlsx"]


def test_success_leaves_only_the_file_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "out.xlsx"
    with WorkbookWriter(path, [ActivityKind.Kernel]) as book:
        book.write(kernels(1))
    assert os.listdir(tmp_path) == ["out.xlsx"]
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_missing_directory_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="can't write"):
        WorkbookWriter(tmp_path / "missing" / "out.xlsx")


def test_a_directory_in_the_place_of_the_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "out.xlsx"
    path.mkdir()
    book = WorkbookWriter(path)
    book.write(kernels(1))
    with pytest.raises(SinkError, match="can't write"):
        book.close()
    assert os.listdir(tmp_path) == ["out.xlsx"]
