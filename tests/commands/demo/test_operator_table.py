"""The table of operators per rank."""

from __future__ import annotations

import io

from rich.console import Console

from msmon.commands.demo.operator_table import operator_table
from msmon.commands.demo.totals import OperatorTotal


def test_the_table_fits_80_columns_and_marks_the_rank_that_is_slow() -> None:
    totals = {
        rank: [
            OperatorTotal("Communication", "allReduce" * 6, 5, 5 * mean_ns, mean_ns),
            OperatorTotal("Kernel", "MatMulV3", 100_000, 25_000_000_000, 260_000.0),
        ]
        for rank, mean_ns in enumerate((900_000, 300_000))
    }
    console = Console(file=io.StringIO(), width=80)
    console.print(operator_table(totals, {1}, 2, "Top operators"))
    text = console.file.getvalue()
    assert all(len(row) <= 80 for row in text.splitlines())
    assert "1 slow" in text
    assert "0 slow" not in text
