"""JSONL files made to hurt whoever converts them cost a skipped line and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msmon.conversion.sources.search import find_sources

RECORD = {"kind": "ExternalCorrelation", "correlationId": 1, "externalId": 2, "externalKind": 3}
MARKER = {
    "kind": "Marker", "domain": "d", "endNs": 9, "id": 1, "name": "n", "processId": 1,
    "sourceKind": "Host", "startNs": 1, "threadId": 2,
}  # fmt: skip
GAP = {
    "kind": "gap",
    "stage": "uplink",
    "startNs": 1,
    "endNs": 2,
    "records": {"API": 3},
    "reason": "",
}
NO_VALUES: list[Any] = [True, [], {}, 1.5, -1, 2**64, 10**400, None]


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("value", NO_VALUES, ids=repr)
@pytest.mark.parametrize(
    ("line", "key"),
    [(RECORD, "correlationId"), (MARKER, "id"), (MARKER, "processId"), (GAP, "startNs")],
)
def test_a_value_of_a_wrong_type_or_size_costs_its_line(
    tmp_path: Path, read: Callable[..., Any], line: dict[str, Any], key: str, value: Any
) -> None:
    path = write(tmp_path / "a.jsonl", RECORD, {**line, key: value}, RECORD)
    found, (source,) = read(path)
    assert {kind: len(rows) for kind, rows in found.items()} == {"ExternalCorrelation": 2}
    assert source.skipped == 1
    assert source.gaps == []


@pytest.mark.parametrize("rank", ["/../../x", "1", 2**31, -2, None, 1.0, [1]])
def test_a_rank_that_can_be_none_is_not_taken(
    tmp_path: Path, read: Callable[..., Any], rank: Any
) -> None:
    path = write(tmp_path / "a.jsonl", RECORD, {"kind": "rank_device_map", "rank": rank})
    _, (source,) = read(path)
    assert (source.process.rank, source.skipped) == (-1, 1)


@pytest.mark.parametrize(
    "line",
    [b"[" * 100_000, b'{"kind":' * 100_000, b"9" * 5000, b"\0" * 100, b'{"kind":["Kernel"]}',
     b'{"kind":"Kernel","x":"' + b"x" * (5 << 20) + b'"}', b"\xff" * (40 << 20)],
    ids=["lists", "tables", "digits", "NUL", "kind", "long", "longer"],
)  # fmt: skip
def test_a_line_that_is_no_record_is_skipped_once(
    tmp_path: Path, read: Callable[..., Any], line: bytes
) -> None:
    good = json.dumps(RECORD).encode()
    path = tmp_path / "a.jsonl"
    path.write_bytes(good + b"\n" + line + b"\n" + good)
    found, (source,) = read(path)
    assert len(found["ExternalCorrelation"]) == 2
    assert source.skipped == 1


def test_a_file_without_ends_of_lines_is_given_up(tmp_path: Path, read: Callable[..., Any]) -> None:
    path = write(tmp_path / "a.jsonl", RECORD)
    os.truncate(path, 1 << 40)  # a terabyte of nothing
    found, (source,) = read(path)
    assert len(found["ExternalCorrelation"]) == 1
    assert "without an end of a line" in source.problems[0]


def test_names_with_nul_and_lone_surrogates_are_escaped(
    tmp_path: Path, read: Callable[..., Any]
) -> None:
    path = write(tmp_path / "a.jsonl", {**MARKER, "name": "a\0b\ud800"})
    found, _ = read(path)
    assert "a\\x00b\\ud800" in found["Marker"][0]


def test_only_regular_files_of_a_directory_are_read(tmp_path: Path) -> None:
    name = "msmonitor_{}_20260101000000000_0.jsonl"
    elsewhere = write(tmp_path / "elsewhere", RECORD)
    directory = tmp_path / "in"
    directory.mkdir()
    write(directory / name.format(1), RECORD)
    (directory / name.format(2)).symlink_to(elsewhere)
    os.mkfifo(directory / name.format(3))
    (directory / name.format(4)).mkdir()
    sources = find_sources([directory])
    reasons = [problem for source in sources for problem in source.problems]
    assert len(sources) == 4
    assert sorted(reasons)[:1] == ["is a link; name it itself to read what it leads to"]
    assert reasons.count("is no regular file") == 2
