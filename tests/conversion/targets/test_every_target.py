"""Every source goes into every target: same data, same counts, read by somebody else's reader."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from msmon.conversion.convert import Report, convert
from msmon.conversion.sources.search import find_sources
from msmon.conversion.targets.choosing import FORMATS, choose_target
from msmon.errors import UsageError

TABLES = {
    "CANN_API": ("API", "AclAPI", "RuntimeAPI"),
    "MSMON_NODE_API": ("NodeAPI",),
    "COMPUTE_TASK_INFO": ("Kernel",),
    "COMMUNICATION_OP": ("Communication",),
    "MEMCPY_INFO": ("MemCpy",),
    "MSMON_MEMSET": ("MemSet",),
    "MSMON_MEMORY": ("Memory",),
    "MSMON_HCCL": ("Hccl",),
    "MSMON_EXTERNAL_CORRELATION": ("ExternalCorrelation",),
}
UNTIMED = {"ExternalCorrelation"}
"""What a trace has no place for."""
MARKER_EVENTS = 49 * 2 + 24 * 2
"""Ranges and marks of the host, and those of the device."""
COUNT = 200


def into(target: str, out: Path, *paths: Path) -> Report:
    if target == "parquet":
        pytest.importorskip("pyarrow")
    sources = find_sources(paths)
    out.mkdir()
    return convert(sources, choose_target(target, out, sources))


def in_database(path: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    connection = sqlite3.connect(path)
    for table, kinds in TABLES.items():
        (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        counts.update({kind: rows // len(kinds) for kind in kinds})
    connection.close()
    return counts


def in_lines(path: Path) -> Counter[str]:
    return Counter(json.loads(line)["kind"] for line in path.read_text().splitlines())


def in_workbook(path: Path) -> Counter[str]:
    book = openpyxl.load_workbook(path, read_only=True)
    counts = {name: len(list(book[name].iter_rows())) - 1 for name in book.sheetnames}
    book.close()
    return Counter(counts)


def in_trace(path: Path) -> Counter[str]:
    events = json.loads(path.read_text())["traceEvents"]
    return Counter(event["cat"] for event in events if event["ph"] in "Xi")


def in_parquet(path: Path) -> Counter[str]:
    from pyarrow import parquet

    return Counter({path.name.split(".")[1]: parquet.read_metadata(path).num_rows})


READERS: dict[str, Callable[[Path], Counter[str]]] = {
    "db": in_database,
    "jsonl": in_lines,
    "xlsx": in_workbook,
    "perfetto": in_trace,
    "parquet": in_parquet,
}


@pytest.mark.parametrize("export_type", ["DB", "Jsonl"])
@pytest.mark.parametrize("target", FORMATS)
def test_all_records_arrive(
    tmp_path: Path, export: Callable[..., Any], batches: Callable[..., Any], target: str,
    export_type: str,
) -> None:  # fmt: skip
    report = into(target, tmp_path / "out", *export(tmp_path / "in", export_type))
    counts: Counter[str] = sum(map(READERS[target], report.files), Counter())
    expected = {batch.kind.name for batch in batches()} - {"Marker"}
    if target == "perfetto":
        expected -= UNTIMED
        assert counts["marker"] == MARKER_EVENTS
        assert report.left_out == COUNT
    elif target != "db":
        assert counts["Marker"] == MARKER_EVENTS
    assert {kind: counts[kind] for kind in expected} == dict.fromkeys(expected, COUNT)
    assert report.skipped == 0


@pytest.mark.parametrize("target", FORMATS)
def test_what_was_skipped_is_counted_and_the_rest_arrives(
    tmp_path: Path, export: Callable[..., Any], target: str
) -> None:
    paths = export(tmp_path / "in", "Jsonl")
    whole = sum(sum(in_lines(path).values()) for path in paths)
    lines = paths[0].read_bytes().splitlines(keepends=True)
    lines[3], lines[5], lines[-1] = b"no json\n", lines[5].replace(b":", b";"), lines[-1][:20]
    paths[0].write_bytes(b"".join(lines))
    report = into(target, tmp_path / "out", *paths)
    assert report.skipped == 3
    if target == "jsonl":
        after = sum(sum(in_lines(path).values()) for path in report.files)
        assert after == whole - 3 + 1  # one gap tells of the loss


@pytest.mark.parametrize(("target", "ending"), [("xlsx", ".xlsx"), ("parquet", ".API.parquet")])
def test_an_input_in_the_directory_of_the_outputs_is_not_replaced(
    tmp_path: Path, export: Callable[..., Any], target: str, ending: str
) -> None:
    if target == "parquet":
        pytest.importorskip("pyarrow")
    paths = export(tmp_path / "in", "DB")
    planted = tmp_path / "in" / f"{paths[0].stem}{ending}"
    planted.write_bytes(paths[0].read_bytes())
    before = sorted(tmp_path.rglob("*"))
    sources = find_sources([*paths, planted])
    with pytest.raises(UsageError, match="is an input"):
        convert(sources, choose_target(target, tmp_path / "in", sources))
    assert planted.read_bytes() == paths[0].read_bytes()
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name.startswith(".")] == [
        path for path in before if path.name.startswith(".")
    ]
