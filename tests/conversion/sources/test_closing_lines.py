"""JSONL files of one pid and rank are told apart by session, and rotated ones stay together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msmon.conversion.sources.search import find_sources
from msmon.records.batch import Batch
from msmon.sessions import MonitorSettings, ProcessInfo, SessionEnd, SessionInfo
from msmon.sinks.base import Progress
from msmon.sinks.jsonl.sink import JsonlPerKindSink, JsonlSink

HOUR_NS = 3600 * 10**9
START_NS = 1_790_000_000_000_000_000


def kernels_at(kernels: Callable[..., Batch], start_ns: int, count: int = 250) -> Batch:
    batch = kernels(count)
    batch.records["start_ns"] = start_ns + 1000 * np.arange(count, dtype=np.uint64)
    batch.records["end_ns"] = batch.records["start_ns"] + np.uint64(500)
    return batch


def write(
    directory: Path, batch: Batch, session_id: str, start_ns: int, host: str = "node-1",
    sink_class: type[JsonlSink] = JsonlSink, ends: bool = True,
) -> None:  # fmt: skip
    settings = MonitorSettings.from_fields(
        {"kinds": "Kernel", "log_file": str(directory), "jsonl_rotate_lines": 100}
    )
    sink = sink_class()
    process = ProcessInfo(host, 17, start_ns % 1000, rank=0)
    sink.open_session(SessionInfo(session_id, process, settings, start_ns))
    sink.write_records(session_id, 2, batch)
    if ends:
        sink.close_session(session_id, 3, SessionEnd(start_ns + 10**9, "stop"))
    sink.commit()
    sink.close()


def counts(directory: Path) -> list[tuple[str, int, int]]:
    """Host, files and records of each source found."""
    return [
        (source.process.host, len(source.paths), sum(map(len, source.batches(lambda size: None))))
        for source in find_sources([directory])
    ]


@pytest.mark.parametrize("sink_class", [JsonlSink, JsonlPerKindSink])
def test_two_processes_of_one_pid_and_rank_are_two_sources(
    tmp_path: Path, kernels: Callable[..., Batch], sink_class: type[JsonlSink]
) -> None:
    for number in range(2):
        start_ns = START_NS + number * HOUR_NS
        batch = kernels_at(kernels, start_ns, 250 + number)
        write(tmp_path, batch, f"s{number}", start_ns, sink_class=sink_class)
    files = 3 if sink_class is JsonlSink else 4
    assert counts(tmp_path) == [("node-1", files, 250), ("node-1", files, 251)]


def test_the_session_that_has_not_ended_is_the_last(
    tmp_path: Path, kernels: Callable[..., Batch]
) -> None:
    write(tmp_path, kernels_at(kernels, START_NS), "s0", START_NS)
    later_ns = START_NS + HOUR_NS
    write(tmp_path, kernels_at(kernels, later_ns, 120), "s1", later_ns, ends=False)
    assert counts(tmp_path) == [("node-1", 3, 250), ("", 2, 120)]


def test_files_of_two_hosts_that_were_put_into_one_directory(
    tmp_path: Path, kernels: Callable[..., Batch]
) -> None:
    """Their names alternate, and the sessions overlap by nothing but their first files."""
    write(tmp_path, kernels_at(kernels, START_NS), "s0", START_NS, "node-1")
    other_ns = START_NS + 2 * 10**9
    write(tmp_path, kernels_at(kernels, other_ns), "s1", other_ns, "node-2")
    for number, path in enumerate(sorted(tmp_path.iterdir())):
        place = 2 * (number % 3) + number // 3
        path.rename(tmp_path / f"msmonitor_17_2026010100000000{place}_0.jsonl")
    assert sorted(counts(tmp_path)) == [("node-1", 3, 250), ("node-2", 3, 250)]


def test_a_lost_session_that_came_back_is_one_source(
    tmp_path: Path, kernels: Callable[..., Batch]
) -> None:
    settings = MonitorSettings.from_fields({"kinds": "Kernel", "log_file": str(tmp_path)})
    info = SessionInfo("s0", ProcessInfo("node-1", 17, 5, rank=0), settings, START_NS)
    kept, sink = Progress(), JsonlSink()
    for number, reason in enumerate(("lost", "stop")):
        sink.open_session(info, kept)
        start_ns = START_NS + number * 10**9
        sink.write_records("s0", 2 * number + 2, kernels_at(kernels, start_ns))
        sink.close_session("s0", 2 * number + 3, SessionEnd(start_ns + 10**9, reason))
        sink.commit()
    assert counts(tmp_path) == [("node-1", 2, 500)]


def test_the_session_keeps_its_times_and_host(
    tmp_path: Path, kernels: Callable[..., Batch]
) -> None:
    write(tmp_path, kernels_at(kernels, START_NS + 5000), "s0", START_NS)
    (source,) = find_sources([tmp_path])
    list(source.batches(lambda size: None))
    assert (source.start_ns, source.end_ns) == (START_NS, START_NS + 10**9)


@pytest.mark.parametrize(
    "forged", [{"session": 7}, {"host": "x" * 300}, {"startNs": -1}, {"endNs": 2**70}, {}]
)
def test_a_closing_line_of_msmonitor_or_a_forged_one_still_ends_a_session(
    tmp_path: Path, kernels: Callable[..., Batch], forged: dict[str, Any]
) -> None:
    for number in range(2):
        write(tmp_path, kernels_at(kernels, START_NS, 50), f"s{number}", START_NS)
    for path in tmp_path.iterdir():
        *lines, _ = path.read_text().splitlines()
        closing = {"kind": "rank_device_map", "rank": 0, "device": [0], **forged}
        path.write_text("\n".join([*lines, json.dumps(closing)]) + "\n")
    assert counts(tmp_path) == [("", 1, 50), ("", 1, 50)]
