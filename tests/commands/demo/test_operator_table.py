"""The table of operators per rank, and the rank that lags."""

from __future__ import annotations

import io

from rich.console import Console

from msmon.commands.demo.operator_table import lagging_rank, operator_table, verdict
from msmon.commands.demo.totals import OperatorTotal


def collectives(*means_ns: int) -> dict[int, list[OperatorTotal]]:
    """Totals of ranks 0, 1, … with five collectives each."""
    return {
        rank: [OperatorTotal("Communication", "allReduce" * 6, 5, 5 * mean_ns, mean_ns)]
        for rank, mean_ns in enumerate(means_ns)
    }


def test_the_rank_with_the_shortest_collectives_lags():
    totals = collectives(900, 880, 300, 910)
    assert lagging_rank(totals) == 2
    assert "Rank 2 lags" in verdict(totals)


def test_nobody_lags_when_collectives_are_alike_or_there_are_none():
    assert lagging_rank({}) is None
    assert lagging_rank(collectives(900, 870)) is None
    assert "No rank lags" in verdict(collectives(900, 870))


def test_nothing_is_said_of_a_rank_that_is_alone():
    assert "lag" not in verdict(collectives(900)).partition("--ranks 2")[0]


def test_the_table_fits_80_columns_and_marks_the_rank_that_lags():
    totals = collectives(900_000, 300_000)
    for operators in totals.values():
        operators.append(OperatorTotal("Kernel", "MatMulV3", 100_000, 25_000_000_000, 260_000.0))
    console = Console(file=io.StringIO(), width=80)
    console.print(operator_table(totals, 2, "Top operators"))
    text = console.file.getvalue()
    assert all(len(row) <= 80 for row in text.splitlines())
    assert "1 lags" in text
    assert "0 lags" not in text
