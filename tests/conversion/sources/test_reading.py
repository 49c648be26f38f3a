"""What was exported is read back, record by record; damage costs only what it hit."""

from __future__ import annotations

import os
import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msmon.conversion.sources.search import find_sources
from msmon.errors import UsageError
from msmon.records.batch import Batch, printable
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import INVALID_ID, ActivityKind
from msmon.sessions import MonitorSettings, ProcessInfo, SessionEnd, SessionInfo
from msmon.sinks.sqlite.sink import SqliteSink

START_NS = 1_790_000_000_000_000_000

Rows = dict[str, list[tuple[Any, ...]]]


def as_printed(rows: Rows) -> Rows:
    """Files hold valid text only."""
    return {
        kind: sorted(
            (
                tuple(printable(value) if isinstance(value, str) else value for value in row)
                for row in found
            ),
            key=repr,
        )
        for kind, found in rows.items()
    }


def test_jsonl_files_give_back_every_record(
    tmp_path: Path, export: Callable[..., Any], batches: Callable[..., Any],
    rows: Callable[..., Rows], read: Callable[..., Any],
) -> None:  # fmt: skip
    paths = export(tmp_path, "Jsonl")
    assert len(paths) > 2
    found, (source,) = read(*paths)
    assert found == as_printed(rows(batches()))
    assert source.skipped == 0
    assert source.process.rank == 0
    assert source.notes == {"parallel_group_info": '{"group": 1}'}
    assert source.gaps[0].records == {"Kernel": 7}


def test_databases_give_back_every_record(
    tmp_path: Path, export: Callable[..., Any], batches: Callable[..., Any],
    rows: Callable[..., Rows], read: Callable[..., Any],
) -> None:  # fmt: skip
    (path,) = export(tmp_path, "DB")
    found, (source,) = read(path)
    expected = as_printed(rows(batches()))
    fields = list(DTYPES[ActivityKind.Communication].names or ())
    stream = fields.index("stream_id")
    expected["Communication"] = sorted(
        ((*row[:stream], INVALID_ID, *row[stream + 1 :]) for row in expected["Communication"]),
        key=repr,
    )
    for kind in expected:
        assert found[kind] == expected[kind], kind
    assert source.process.host == "host-a"
    assert (source.skipped, source.problems) == (0, [])
    assert source.gaps[0].records == {"Kernel": 7}


def test_a_torn_last_line_and_damaged_lines_are_skipped_and_counted(
    tmp_path: Path, export: Callable[..., Any], read: Callable[..., Any]
) -> None:
    path = export(tmp_path, "Jsonl")[0]
    whole = path.read_bytes()
    good = whole.count(b"\n")
    damage = [
        b"\n", b"{}\n", b"[]\n", b"3\n", b"\xff\xfe\n", b'{"kind":"Kernel"}\n',
        b'{"kind":"Unheard"}\n',
        b'{"kind":"ExternalCorrelation","correlationId":1.5,"externalId":1,"externalKind":1}\n',
        b'{"kind":"ExternalCorrelation","correlationId":-1,"externalId":1,"externalKind":1}\n',
        b'{"kind":"ExternalCorrelation","correlationId":"1","externalId":1,"externalKind":1}\n',
    ]  # fmt: skip
    path.write_bytes(b"".join(damage) + whole + whole.splitlines()[0][:-7])
    found, (source,) = read(path)
    assert sum(map(len, found.values())) == good
    assert source.skipped == len(damage)  # the blank line is none, the torn one is


def test_a_database_without_its_strings_shows_their_numbers(
    tmp_path: Path, export: Callable[..., Any], read: Callable[..., Any]
) -> None:
    (path,) = export(tmp_path, "DB")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE STRING_IDS")
    connection.close()
    found, (source,) = read(path)
    assert [len(found[kind]) for kind in ("Kernel", "MemCpy", "MemSet")] == [200, 200, 200]
    assert all(row[-1].startswith("#") for row in found["Kernel"])
    assert len(found["Marker"]) == 49 * 2 + 24 * 2
    assert "STRING_IDS" in source.problems[0]


def test_a_database_cut_short_gives_what_is_left(
    tmp_path: Path, export: Callable[..., Any], read: Callable[..., Any]
) -> None:
    (path,) = export(tmp_path, "DB")
    data = bytearray(path.read_bytes())
    page = 32768
    data[-2 * page :] = b"\xaa" * (2 * page)
    path.write_bytes(bytes(data))
    found, (source,) = read(path)
    assert source.skipped > 0
    assert source.problems
    assert found


def test_what_is_no_export_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        find_sources([tmp_path / "missing.db"])
    with pytest.raises(UsageError, match="no exported files"):
        find_sources([tmp_path])
    pipe = tmp_path / "pipe.db"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="neither a file nor a directory"):
        find_sources([pipe])


def test_a_directory_stands_for_its_exported_files(
    tmp_path: Path, export: Callable[..., Any]
) -> None:
    for rank in (2, 0, 1):
        export(tmp_path, "Jsonl", rank)
        export(tmp_path, "DB", rank)
    (tmp_path / "notes.txt").write_text("mine")
    sources = find_sources([tmp_path])
    assert [source.process.rank for source in sources] == [0, 0, 1, 1, 2, 2]


def test_names_of_collectives_take_no_memory(tmp_path: Path, read: Callable[..., Any]) -> None:
    count = 20_000
    records = np.zeros(count, DTYPES[ActivityKind.Communication])
    records["kind"] = ActivityKind.Communication
    records["start_ns"] = START_NS + np.arange(count)
    records["end_ns"] = records["start_ns"] + np.uint64(1)
    records["name"], records["comm_name"] = 1, 2
    batch = Batch(ActivityKind.Communication, records, ("", "hcom_allReduce_" * 10, "group"))
    sink = SqliteSink()
    settings = MonitorSettings(kinds="Communication", log_file=str(tmp_path))
    process = ProcessInfo("host-a", 500, 7, rank=0)
    (path,) = sink.open_session(SessionInfo("s", process, settings, START_NS)).files
    sink.write_records("s", 2, batch)
    sink.close_session("s", 3, SessionEnd(START_NS, "stopped"))
    sink.commit()
    tracemalloc.start()
    try:
        (source,) = find_sources([Path(path)])
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    found = sum(map(len, source.batches(lambda size: None)))
    assert (found, source.problems, source.skipped) == (count, [], 0)
    assert held_bytes < 500_000
