"""Operator totals per rank from the windows in a file, and the rank that lags."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from msmon.commands.demo.table import MetricsFile, lagging_rank, operator_table, verdict


def line(rank: int, name: str, count: int, mean_ns: int, kind: str = "Kernel") -> str:
    return json.dumps(
        {
            "kind": kind,
            "device": rank,
            "rank": rank,
            "name": name,
            "count": count,
            "total_ns": count * mean_ns,
            "min_ns": mean_ns,
            "max_ns": mean_ns,
            "p95_ns": mean_ns,
        }
    )


@pytest.fixture
def metrics(tmp_path):
    return MetricsFile(tmp_path / "metrics.jsonl")


def write(tmp_path, text: str) -> None:
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(text)


def test_windows_of_one_operator_add_up(metrics, tmp_path):
    write(tmp_path, line(0, "MatMul", 10, 100) + "\n" + line(0, "MatMul", 30, 200) + "\n")
    metrics.read()
    total = metrics.totals[0]["Kernel", "MatMul"]
    assert (total.count, total.total_ns, total.mean_ns, total.p95_ns) == (40, 7000, 175, 175)


def test_a_gap_is_no_operator(metrics, tmp_path):
    write(tmp_path, json.dumps({"kind": "gap", "stage": "uplink", "records": None}) + "\n")
    metrics.read()
    assert not metrics.totals


def test_half_a_line_waits_for_its_other_half(metrics, tmp_path):
    whole = line(0, "MatMul", 10, 100) + "\n"
    write(tmp_path, whole[:20])
    metrics.read()
    assert not metrics.totals
    write(tmp_path, whole[20:])
    metrics.read()
    assert metrics.totals[0]["Kernel", "MatMul"].count == 10


def test_what_an_earlier_run_left_does_not_count(tmp_path):
    write(tmp_path, line(0, "MatMul", 10, 100) + "\n")
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.read()
    assert not metrics.totals


def test_the_rank_with_the_shortest_collectives_lags(metrics, tmp_path):
    for rank, mean_ns in enumerate((900, 880, 300, 910)):
        write(tmp_path, line(rank, "allReduce", 5, mean_ns, "Communication") + "\n")
    metrics.read()
    assert lagging_rank(metrics.totals) == 2
    assert "Rank 2 lags" in verdict(metrics.totals)


def test_nobody_lags_when_collectives_are_alike_or_there_are_none(metrics, tmp_path):
    assert lagging_rank(metrics.totals) is None
    write(tmp_path, line(0, "allReduce", 5, 900, "Communication") + "\n")
    write(tmp_path, line(1, "allReduce", 5, 870, "Communication") + "\n")
    metrics.read()
    assert lagging_rank(metrics.totals) is None
    assert "No rank lags" in verdict(metrics.totals)


def test_the_table_fits_80_columns_and_marks_the_rank_that_lags(metrics, tmp_path):
    for rank, mean_ns in enumerate((900_000, 300_000)):
        write(tmp_path, line(rank, "allReduce" * 6, 5, mean_ns, "Communication") + "\n")
        write(tmp_path, line(rank, "MatMulV3", 100_000, 250_000) + "\n")
    metrics.read()
    console = Console(file=io.StringIO(), width=80)
    console.print(operator_table(metrics.totals, 2, "Top operators"))
    text = console.file.getvalue()
    assert all(len(row) <= 80 for row in text.splitlines())
    assert "1 lags" in text
    assert "0 lags" not in text
