"""Exported files with records of every kind, made by the daemon's own sinks.

``batches``  the records of one rank, one batch per kind; texts and numbers at their extremes
``export``   writes them as DB or JSONL and returns the files
``read``     reads a source to its end and returns its records per kind, as sorted tuples
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msmon.conversion.sources.search import find_sources
from msmon.conversion.sources.source import Source
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import INVALID_ID, ActivityKind, MarkerFlag, SourceKind, format_kinds
from msmon.records.layout import TEXT_FIELDS
from msmon.records.markers import MarkerPairing
from msmon.sessions import Gap, MonitorSettings, ProcessInfo, SessionEnd, SessionInfo
from msmon.sinks.jsonl.sink import JsonlSink
from msmon.sinks.sqlite.sink import SqliteSink

START_NS = 1_790_000_000_000_000_001
TEXTS = ("", "MatMul", "名前", 'quote" \\ slash', "tab\tnew\nline", "bad\udcff", "ProfilerStep#3")
COUNT = 200


def make_batches(rank: int = 0) -> list[Batch]:
    kinds = [kind for kind in ActivityKind if kind is not ActivityKind.Marker]
    return [_markers(rank), *(_batch(kind, rank) for kind in kinds)]


def _batch(kind: ActivityKind, rank: int) -> Batch:
    random = np.random.default_rng(kind * 100 + rank)
    records = np.zeros(COUNT, DTYPES[kind])
    records["kind"] = kind
    for field in records.dtype.names or ():
        if field in ("start_ns", "end_ns"):
            records[field] = START_NS + np.arange(COUNT) * 1000 + (field == "end_ns") * 700
        elif field in ("correlation_id", "external_id"):
            records[field] = np.arange(COUNT) + 1
            if kind is not ActivityKind.API:
                records[field][0] = 2**63 + 5
        elif field in ("address", "size_bytes", "count"):
            records[field] = random.integers(0, 2**63, COUNT).astype(np.uint64) * 2
        elif field == "stream_id":
            records[field] = random.choice([0, 3, INVALID_ID], COUNT)
        elif field in ("data_type", "copy_kind", "operation", "memory_kind", "is_async"):
            records[field] = random.integers(0, 2, COUNT)
        elif field == "bandwidth_gb_per_s":
            records[field] = random.random(COUNT)
        elif field in TEXT_FIELDS[kind]:
            records[field] = random.integers(0, len(TEXTS), COUNT)
        elif field != "kind":
            records[field] = random.integers(0, 2**31, COUNT)
    return Batch(kind, records, TEXTS)


def _markers(rank: int) -> Batch:
    """Ranges with and without a device part, nested, and marks of both sorts."""
    rows = []
    for number in range(1, COUNT // 4):
        begin, device = START_NS + number * 5000, number % 2 == 0
        name = number % len(TEXTS) or 1
        flags = (16, 32) if device else (2, 4)
        rows.append((flags[0], SourceKind.HOST, begin, number, 50, 51, name, 1))
        if device:
            rows.append((16, SourceKind.DEVICE, begin + 10, number, rank, 3, 0, 0))
            rows.append((32, SourceKind.DEVICE, begin + 90, number, rank, 3, 0, 0))
        rows.append((flags[1], SourceKind.HOST, begin + 100, number, 50, 51, 0, 0))
        mark = MarkerFlag.INSTANTANEOUS_WITH_DEVICE if device else MarkerFlag.INSTANTANEOUS
        rows.append((mark, SourceKind.HOST, begin + 5, 10_000 + number, 50, 51, name, 2))
        if device:
            rows.append((mark, SourceKind.DEVICE, begin + 7, 10_000 + number, rank, 3, 0, 0))
    records = np.zeros(len(rows), DTYPES[ActivityKind.Marker])
    records["kind"] = ActivityKind.Marker
    for field, values in zip((records.dtype.names or ())[1:], zip(*rows)):
        records[field] = values
    return Batch(ActivityKind.Marker, records, TEXTS)


def write_export(directory: Path, export_type: str, rank: int = 0) -> list[Path]:
    directory.mkdir(exist_ok=True)
    before = set(directory.iterdir())
    settings = MonitorSettings(
        kinds=format_kinds(ActivityKind), log_file=str(directory), export_type=export_type,
        jsonl_rotate_lines=500,
    )  # fmt: skip
    process = ProcessInfo("host-a", 500 + rank, 7, rank=rank)
    session = SessionInfo(f"s{rank}", process, settings, START_NS)
    sink = SqliteSink() if export_type == "DB" else JsonlSink()
    sink.open_session(session)
    for seq, batch in enumerate(make_batches(rank), start=2):
        sink.write_records(session.session_id, seq, batch)
    sink.write_gap(session.session_id, 90, Gap("slots", START_NS, START_NS + 9, {"Kernel": 7}))
    sink.write_note(session.session_id, 91, "parallel_group_info", '{"group": 1}')
    sink.close_session(session.session_id, 92, SessionEnd(START_NS + 10**9, "stopped"))
    sink.commit()
    sink.close()
    return sorted(set(directory.glob("msmonitor_*")) - before)


def rows_of(batches: Iterable[Batch]) -> dict[str, list[tuple[Any, ...]]]:
    """Records per kind as sorted tuples with texts; markers as their paired events."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    pairing = MarkerPairing()
    for batch in batches:
        table = pairing.add(batch) if batch.kind is ActivityKind.Marker else batch
        columns = table.to_numpy()
        for field in ("process_id", "thread_id", "end_process_id", "end_thread_id"):
            if batch.kind is ActivityKind.Marker:
                columns[field] = np.where(columns["device_id"] < 0, columns[field], 0)
        values = [column.tolist() for column in columns.values()]
        rows.setdefault(batch.kind.name, []).extend(zip(*values))
    return {kind: sorted(found, key=repr) for kind, found in rows.items()}


def read_all(*paths: Path) -> tuple[dict[str, list[tuple[Any, ...]]], list[Source]]:
    sources = find_sources(paths)
    batches = [batch for source in sources for batch in source.batches(lambda size: None)]
    return rows_of(batches), sources


@pytest.fixture
def batches() -> Callable[..., list[Batch]]:
    return make_batches


@pytest.fixture
def export() -> Callable[..., list[Path]]:
    return write_export


@pytest.fixture
def rows() -> Callable[..., dict[str, list[tuple[Any, ...]]]]:
    return rows_of


@pytest.fixture
def read() -> Callable[..., tuple[dict[str, list[tuple[Any, ...]]], list[Source]]]:
    return read_all
