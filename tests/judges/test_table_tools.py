"""DuckDB, Polars and pandas read exported JSON lines right, by the calls that the docs name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msmon.conversion.sources.search import find_sources
from msmon.records.kinds import ActivityKind
from msmon.sessions import Gap, SessionEnd
from msmon.sinks.jsonl.sink import JsonlPerKindSink, JsonlSink

LABELS = ("Kernel", "HostMarker", "DeviceMarker", "API", "Communication", "MemCpy")
STEPS = 20
KERNELS = 25_000
"""More than the lines from which DuckDB and Polars guess columns."""


@pytest.fixture
def exported(
    tmp_path: Path,
    kernels: Callable[..., Any],
    batch: Callable[..., Any],
    job_rank: Callable[..., Any],
    session: Callable[..., Any],
) -> Callable[..., tuple[Path, list[int]]]:
    """Return a function that exports kernels first and other kinds behind them."""

    def export(sink: JsonlSink, lines: int) -> tuple[Path, list[int]]:
        many = kernels(KERNELS)
        rank = job_rank(0, 2, 1)
        start_ns = int(many.records["start_ns"][0])
        copy = {"start_ns": start_ns + 1, "end_ns": start_ns + 3, "size_bytes": 2**63 + 1}
        batches = [
            many,
            *(item for step in range(STEPS) for item in rank.step(step)),
            batch(ActivityKind.MemCpy, [copy]),
        ]
        opened = session(tmp_path, jsonl_rotate_lines=lines)
        sink.open_session(opened)
        for seq, item in enumerate(batches, 2):
            sink.write_records(opened.session_id, seq, item)
        gap = Gap("slots", start_ns, start_ns + 9, {"Kernel": 7})
        sink.write_gap(opened.session_id, len(batches) + 2, gap)
        end = SessionEnd(start_ns + 10**9, "stopped")
        sink.close_session(opened.session_id, len(batches) + 3, end)
        sink.commit()
        sink.close()
        starts = [int(value) for item in batches if item.kind is ActivityKind.Kernel
                  for value in item.records["start_ns"]]  # fmt: skip
        return tmp_path, sorted(starts)

    return export


def test_files_per_kind_are_right_in_duckdb(exported: Callable[..., Any]) -> None:
    duckdb = pytest.importorskip("duckdb")
    directory, starts = exported(JsonlPerKindSink(), 10_000)
    found = duckdb.sql(f"SELECT startNs FROM '{directory}/*.Kernel.jsonl' ORDER BY startNs")
    assert [value for (value,) in found.fetchall()] == starts
    for label in LABELS:
        table = duckdb.sql(f"SELECT * FROM '{directory}/*.{label}.jsonl'")
        types = dict(zip(table.columns, map(str, table.types)))
        assert (types["startNs"], types["endNs"]) == ("BIGINT", "BIGINT")
        assert not [row for row in table.fetchall() if None in row]


def test_files_per_kind_are_right_in_polars(exported: Callable[..., Any]) -> None:
    polars = pytest.importorskip("polars")
    directory, starts = exported(JsonlPerKindSink(), 10_000)
    found = polars.read_ndjson(f"{directory}/*.Kernel.jsonl")
    assert found["startNs"].sort().to_list() == starts
    for label in LABELS:
        table = polars.read_ndjson(f"{directory}/*.{label}.jsonl")
        assert table.schema["startNs"] == table.schema["endNs"] == polars.Int64
        assert table.null_count().sum_horizontal().item() == 0


def test_files_per_kind_are_right_in_pandas(exported: Callable[..., Any]) -> None:
    pandas = pytest.importorskip("pandas")
    directory, starts = exported(JsonlPerKindSink(), 10_000)
    paths = sorted(directory.glob("*.Kernel.jsonl"))
    found = pandas.concat([pandas.read_json(path, lines=True) for path in paths])
    assert sorted(found["startNs"].tolist()) == starts
    for label in LABELS:
        for path in directory.glob(f"*.{label}.jsonl"):
            table = pandas.read_json(path, lines=True)
            assert (table.dtypes["startNs"], table.dtypes["endNs"]) == ("int64", "int64")
            assert not table.isna().any(axis=None)


@pytest.mark.parametrize("lines", [10_000, 500_000])
def test_files_of_all_kinds_are_right_by_the_documented_calls(
    exported: Callable[..., Any], lines: int
) -> None:
    duckdb, polars, pandas = map(pytest.importorskip, ("duckdb", "polars", "pandas"))
    pytest.importorskip("pyarrow")
    directory, starts = exported(JsonlSink(), lines)
    paths = sorted(directory.glob("*.jsonl"))
    query = f"FROM read_json('{directory}/*.jsonl', sample_size=-1, union_by_name=true)"
    table = duckdb.sql(query)
    columns = set(table.columns)
    kernels = "SELECT startNs " + query + " WHERE kind = 'Kernel' ORDER BY startNs"
    assert [value for (value,) in duckdb.sql(kernels).fetchall()] == starts
    frames = [polars.read_ndjson(path, infer_schema_length=None) for path in paths]
    joined = polars.concat(frames, how="diagonal_relaxed")
    assert set(joined.columns) == columns
    assert joined.filter(kind="Kernel")["startNs"].sort().to_list() == starts
    arrow = {"engine": "pyarrow", "dtype_backend": "pyarrow"}
    frames = [pandas.read_json(path, lines=True, **arrow) for path in paths]
    assert {name for frame in frames for name in frame.columns} == columns
    found = [value for frame in frames for value in frame.query("kind == 'Kernel'")["startNs"]]
    assert sorted(map(int, found)) == starts
    assert len(columns) == 27


def test_files_per_kind_are_one_source_of_a_conversion(exported: Callable[..., Any]) -> None:
    directory, starts = exported(JsonlPerKindSink(), 10_000)
    (source,) = find_sources([directory])
    counts: dict[str, int] = {}
    for item in source.batches(lambda size: None):
        counts[item.kind.name] = counts.get(item.kind.name, 0) + len(item)
    assert counts["Kernel"] == len(starts)
    assert counts["MemCpy"] == 1
    assert (source.skipped, len(source.gaps)) == (0, 1)
