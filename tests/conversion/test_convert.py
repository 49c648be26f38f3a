"""Conversions from any format to any other lose nothing that the target has a place for."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from msmon.conversion.convert import convert
from msmon.conversion.sources.search import find_sources
from msmon.conversion.targets.choosing import choose_target
from msmon.errors import SinkError, UsageError
from msmon.records.batch import Batch
from msmon.sinks import file_names


def run(target: str, out: Path | None, *paths: Path) -> Any:
    sources = find_sources(paths)
    return convert(sources, choose_target(target, out, sources))


@pytest.mark.parametrize("export_type", ["DB", "Jsonl"])
@pytest.mark.parametrize("target", ["db", "jsonl"])
def test_a_conversion_there_and_back_keeps_every_record(
    tmp_path: Path, export: Callable[..., Any], read: Callable[..., Any], target: str,
    export_type: str,
) -> None:  # fmt: skip
    paths = export(tmp_path / "in", export_type)
    report = run(target, tmp_path / "out", *paths)
    assert all(path.name.startswith("msmonitor_500_") for path in report.files)
    assert all(path.name.endswith(f"_0.{target}") for path in report.files)
    before, _ = read(*paths)
    after, (source,) = read(*report.files)
    if "db" in (target, export_type.lower()):
        for found in (before, after):
            found.pop("Communication")  # a DB has no stream for them
    assert after == before
    assert source.notes == {"parallel_group_info": '{"group": 1}'}
    assert len(source.gaps) == 1
    assert report.skipped == 0
    assert sorted(os.listdir(tmp_path / "out")) == sorted(path.name for path in report.files)


def test_a_database_made_from_jsonl_equals_the_direct_one(
    tmp_path: Path, export: Callable[..., Any]
) -> None:
    (direct,) = export(tmp_path / "db", "DB")
    (made,) = run("db", tmp_path / "out", *export(tmp_path / "jsonl", "Jsonl")).files
    counts = []
    for path in (direct, made):
        connection = sqlite3.connect(path)
        tables = [name for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        )]  # fmt: skip
        counts.append(
            {
                table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in tables
                if table not in ("STRING_IDS", "MSMON_STATE")
            }
        )
        connection.close()
    assert counts[0] == counts[1]
    with contextlib.closing(sqlite3.connect(made)) as connection:
        (times,) = connection.execute("SELECT * FROM SESSION_TIME_INFO")
        (first_ns,) = connection.execute("SELECT min(startNs) FROM TASK").fetchone()
        (last_ns,) = connection.execute("SELECT max(endNs) FROM TASK").fetchone()
    assert times[0] <= first_ns < last_ns <= times[1] < first_ns + 10**12


def test_several_ranks_go_into_one_trace(tmp_path: Path, export: Callable[..., Any]) -> None:
    for rank in range(3):
        export(tmp_path / "in", "Jsonl", rank)
    report = run("perfetto", tmp_path / "all.json", tmp_path / "in")
    assert report.files == [tmp_path / "all.json"]
    events = json.loads(report.files[0].read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert {name[:6] for name in names} == {"rank 0", "rank 1", "rank 2"}
    assert report.left_out == 3 * 200  # external correlations have no time


def test_workbooks_per_source(tmp_path: Path, export: Callable[..., Any]) -> None:
    for rank in range(2):
        export(tmp_path / "in", "DB", rank)
    report = run("xlsx", tmp_path / "out", tmp_path / "in")
    assert len(report.files) == 2
    book = openpyxl.load_workbook(report.files[0], read_only=True)
    assert len(list(book["Kernel"].iter_rows())) == 201
    book.close()
    single = run("xlsx", tmp_path / "one.xlsx", report_input(tmp_path))
    assert single.files == [tmp_path / "one.xlsx"]


def report_input(tmp_path: Path) -> Path:
    return sorted((tmp_path / "in").iterdir())[0]


def test_parquet_files_per_kind(tmp_path: Path, export: Callable[..., Any]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    report = run("parquet", tmp_path / "out", *export(tmp_path / "in", "DB"))
    by_kind = {path.name.split(".")[1]: path for path in report.files}
    assert set(by_kind) == set(report.records)
    table = parquet.read_table(by_kind["Kernel"])
    assert table.num_rows == 200
    assert "MatMul" in table["name"].to_pylist()
    assert table.schema.metadata[b"rank"] == b"0"
    assert len(os.listdir(tmp_path / "out")) == len(report.files)


def test_nothing_readable_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.jsonl"
    rubbish.write_bytes(b"\x00\x01\x02 no json\nnone either\n")
    for target in ("db", "jsonl", "xlsx", "perfetto", "parquet"):
        if target == "parquet":
            pytest.importorskip("pyarrow")
        (tmp_path / target).mkdir()
        with pytest.raises(SinkError, match="nothing could be read"):
            run(target, tmp_path / target, rubbish)
        assert os.listdir(tmp_path / target) == []


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"x" * 5000, b"\x00" * 5000])
def test_a_file_that_cant_be_read_does_not_keep_the_others(
    tmp_path: Path, export: Callable[..., Any], content: bytes
) -> None:
    (good,) = export(tmp_path / "in", "DB")
    bad = tmp_path / "in" / good.name.replace("_500_", "_501_")
    bad.write_bytes(content)
    report = run("jsonl", tmp_path / "out", tmp_path / "in")
    assert (report.unread, len(report.files)) == (1, 1)
    assert report.records
    with pytest.raises(SinkError, match="nothing could be read"):
        run("jsonl", tmp_path / "out", bad)


def test_a_database_of_somebody_else_is_no_input(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE customers (name)")
    with pytest.raises(SinkError, match="nothing could be read") as caught:
        run("jsonl", tmp_path / "out", path)
    assert "none of the tables" in caught.value.next_step


@pytest.mark.parametrize("target", ["xlsx", "parquet"])
def test_files_of_the_same_name_from_two_hosts_are_kept_apart(
    tmp_path: Path, export: Callable[..., Any], target: str
) -> None:
    if target == "parquet":
        pytest.importorskip("pyarrow")
    (path,) = export(tmp_path / "first", "DB")
    (tmp_path / "second").mkdir()
    shutil.copy(path, tmp_path / "second" / path.name)
    report = run(target, tmp_path / "out", tmp_path / "first", tmp_path / "second")
    assert len(os.listdir(tmp_path / "out")) == len(set(report.files)) == len(report.files)


@pytest.mark.parametrize("target", ["xlsx", "perfetto"])
def test_neither_an_input_nor_a_device_is_replaced(
    tmp_path: Path, export: Callable[..., Any], target: str
) -> None:
    (path,) = export(tmp_path / "in", "DB")
    source = path.rename(path.with_suffix(".xlsx"))
    with pytest.raises(UsageError, match="is an input"):
        run(target, source, source)
    device = tmp_path / "pipe.xlsx"
    os.mkfifo(device)
    with pytest.raises(UsageError, match="no regular file"):
        run(target, device, source)


@pytest.mark.parametrize("target", ["db", "jsonl", "xlsx", "perfetto", "parquet"])
def test_a_failure_half_way_leaves_nothing(
    tmp_path: Path, export: Callable[..., Any], target: str
) -> None:
    if target == "parquet":
        pytest.importorskip("pyarrow")
    (source,) = find_sources(export(tmp_path / "in", "Jsonl"))
    (tmp_path / "out").mkdir()
    output = choose_target(target, tmp_path / "out", [source])

    def half(advance: Callable[[int], None]) -> Iterator[Batch]:
        yield next(iter(type(source).batches(source, advance)))
        raise OSError(28, "No space left on device")

    source.batches = half  # type: ignore[method-assign]
    with pytest.raises(SinkError, match="No space left"):
        convert([source], output)
    assert os.listdir(tmp_path / "out") == []


def test_progress_ends_at_the_size_of_the_input(tmp_path: Path, export: Callable[..., Any]) -> None:
    paths = export(tmp_path / "in", "Jsonl")
    sources = find_sources(paths)
    steps: list[int] = []
    convert(sources, choose_target("perfetto", tmp_path / "t.json", sources), steps.append)
    assert sum(steps) == sum(path.stat().st_size for path in paths)


def _no_links(*arguments: Any, **options: Any) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("target", ["db", "jsonl"])
def test_files_get_their_place_where_there_are_no_hard_links(
    tmp_path: Path, export: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    paths = export(tmp_path / "in", "DB")
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", _no_links)
        (made,) = run(target, tmp_path / "out", *paths).files
    assert os.listdir(tmp_path / "out") == [made.name]
    assert find_sources([made])[0].process.rank == 0
    assert made.stat().st_size > 1000


def test_without_hard_links_no_file_is_replaced_and_none_stays_empty(
    tmp_path: Path, export: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = export(tmp_path / "in", "DB", 0)
    (second,) = export(tmp_path / "in", "DB", 1)
    monkeypatch.setattr(os, "link", _no_links)
    monkeypatch.setattr(file_names, "time_digits", lambda time_ns: "2" * 17)
    out = tmp_path / "out"
    out.mkdir()
    theirs = out / f"msmonitor_501_{'2' * 17}_1.db"
    theirs.write_text("of somebody else")
    with pytest.raises(SinkError, match="File exists"):
        run("db", out, first, second)
    assert [path.name for path in out.iterdir()] == [theirs.name]
    assert theirs.read_text() == "of somebody else"
    theirs.unlink()

    def fail(path: Path, place: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(SinkError, match="Input/output error"):
        run("db", out, first)
    assert os.listdir(out) == []
