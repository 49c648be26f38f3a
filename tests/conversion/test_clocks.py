"""Differences of hosts' clocks are measured by shared collectives, told, and corrected."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msmon.commands.main import main
from msmon.conversion.clocks import ClockDifference
from msmon.conversion.convert import compare_clocks
from msmon.conversion.sources.search import find_sources
from msmon.records.batch import Batch
from msmon.sessions import SessionEnd
from msmon.sinks.jsonl.sink import JsonlSink
from msmon.sinks.sqlite.sink import SqliteSink

MS = 1_000_000
STEPS = range(3, 9)
START_NS = 1_790_000_000_000_000_000
BEHIND_MS = 120


def moved(batch: Batch, later_ns: int, group_of: Callable[[str], str]) -> Batch:
    records = batch.records.copy()
    for field in {"start_ns", "end_ns", "timestamp_ns"}.intersection(records.dtype.names or ()):
        records[field] += np.uint64(later_ns)
    return Batch(batch.kind, records, tuple(map(group_of, batch.strings)))


@pytest.fixture
def export_rank(
    job_rank: Callable[..., Any], session: Callable[..., Any], tmp_path: Path
) -> Callable[..., None]:
    """Write the export of a rank on a host whose clock shows ``later_ms`` too much."""

    def export(
        rank: int, host: str, later_ms: int = 0, export_type: str = "DB",
        group_of: Callable[[str], str] = str, steps: Iterable[int] = STEPS,
    ) -> None:  # fmt: skip
        info = session(tmp_path, rank)
        process = dataclasses.replace(info.process, host=host)
        info = dataclasses.replace(info, process=process, start_ns=START_NS + later_ms * MS)
        sink = SqliteSink() if export_type == "DB" else JsonlSink()
        sink.open_session(info)
        made = job_rank(rank, 4, 3)
        for step in steps:
            for seq, batch in enumerate(made.step(step), 10 * step):
                sink.write_records(info.session_id, seq, moved(batch, later_ms * MS, group_of))
        sink.close_session(info.session_id, 1000, SessionEnd(START_NS + 10**11, "stop"))
        sink.commit()
        sink.close()

    return export


def clocks(directory: Path) -> list[ClockDifference]:
    return compare_clocks(find_sources([directory]))


@pytest.mark.parametrize("export_type", ["DB", "Jsonl"])
@pytest.mark.parametrize("later_ms", [BEHIND_MS, 0])
def test_the_difference_of_two_hosts_is_measured(
    export_rank: Callable[..., None], tmp_path: Path, export_type: str, later_ms: int
) -> None:
    export_rank(0, "node-1", later_ms, export_type)
    export_rank(1, "node-1", later_ms, export_type)
    export_rank(2, "node-2", 0, export_type)
    (found,) = clocks(tmp_path)
    assert (found.host, found.reference) == ("node-2", "node-1")
    assert found.ahead_ns == pytest.approx(-later_ms * MS, abs=100)
    assert found.collectives > 20
    assert found.spread_ns < 1000


def test_hosts_without_a_common_group_are_compared_by_way_of_others(
    export_rank: Callable[..., None], tmp_path: Path
) -> None:
    export_rank(0, "node-1", 0, group_of=lambda text: text.replace("group_name_1", "first"))
    export_rank(1, "node-2", 40)
    export_rank(2, "node-3", 70, group_of=lambda text: text.replace("group_name_0", "last"))
    assert [(item.host, round((item.ahead_ns or 0) / MS)) for item in clocks(tmp_path)] == [
        ("node-2", 40),
        ("node-3", 70),
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"group_of": lambda text: text.replace("group_name", "another")},
        {"steps": range(20, 22)},
        {"group_of": lambda text: text.replace("step ", "part ")},
    ],
)
def test_what_is_not_shared_measures_nothing(
    export_rank: Callable[..., None], tmp_path: Path, other: dict[str, Any]
) -> None:
    export_rank(0, "node-1")
    export_rank(1, "node-2", BEHIND_MS, **other)
    assert clocks(tmp_path) == [ClockDifference("node-2", "node-1")]


def test_ranks_of_one_host_are_not_read_for_it(
    export_rank: Callable[..., None], tmp_path: Path
) -> None:
    export_rank(0, "node-1")
    export_rank(1, "node-1", BEHIND_MS)
    assert clocks(tmp_path) == []


def last_ends(trace: Path) -> list[float]:
    events = json.loads(trace.read_text())["traceEvents"]
    ends: dict[int, float] = {}
    for event in events:
        if event.get("cat") == "Communication":
            ends[event["pid"]] = max(ends.get(event["pid"], 0), event["ts"] + event["dur"])
    return list(ends.values())


def test_a_trace_of_two_hosts_tells_the_difference_and_corrects_it_on_demand(
    export_rank: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_rank(0, "node-1")
    export_rank(1, "node-2", BEHIND_MS)
    trace = tmp_path / "trace.json"
    arguments = ["convert", str(tmp_path), "--to", "perfetto", "-o", str(trace)]
    assert main(arguments) == 0
    told = capsys.readouterr().err
    assert "clock of node-2: 120.000 ms ahead of that of node-1, by " in told
    assert "--align-clocks corrects it" in told
    first, second = last_ends(trace)
    assert second - first == pytest.approx(BEHIND_MS * 1000, abs=1)
    assert main([*arguments, "--align-clocks"]) == 0
    assert "its times were moved by -120.000 ms" in capsys.readouterr().err
    first, second = last_ends(trace)
    assert second - first == pytest.approx(0, abs=1)


def test_aligned_files_hold_moved_times_and_what_can_not_be_measured_is_said(
    export_rank: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_rank(0, "node-1")
    export_rank(1, "node-2", BEHIND_MS)
    export_rank(2, "node-3", group_of=lambda text: text.replace("group_name", "another"))
    out = tmp_path / "out"
    arguments = ["convert", str(tmp_path), "--to", "db", "-o", str(out), "--align-clocks"]
    assert main(arguments) == 0
    assert "clock of node-3: can't be compared with that of node-1" in capsys.readouterr().err
    sources = {source.process.host: source for source in find_sources([out])}
    assert sources["node-1"].start_ns == START_NS
    assert sources["node-2"].start_ns == pytest.approx(START_NS, rel=0, abs=100)
    assert (clocks(out)[0].ahead_ns or 0) == pytest.approx(0, abs=100)
