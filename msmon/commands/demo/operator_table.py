"""What ``msmon demo`` shows: the top operators of each rank, those that are slow marked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.table import Table
from rich.text import Text

from msmon.commands.demo.totals import OperatorTotal, Totals
from msmon.commands.status.process_table import elastic


def top_operators(
    operators: Sequence[OperatorTotal], limit: int
) -> Iterable[tuple[OperatorTotal, float]]:
    """Return (operator, share of the rank's operator time), longest total first."""
    whole_ns = sum(total.total_ns for total in operators) or 1
    ordered = sorted(operators, key=lambda total: -total.total_ns)
    return [(total, total.total_ns / whole_ns) for total in ordered[:limit]]


def operator_table(totals: Totals, slow: Collection[int], limit: int, title: str) -> Table:
    """Return the table of the top ``limit`` operators of each rank, the slow ones marked."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, title=title, title_justify="left")
    table.add_column("RANK", no_wrap=True)
    table.add_column("OPERATOR")
    for name in ("COUNT", "TOTAL ms", "MEAN µs", "P95 µs", "SHARE"):
        table.add_column(name, justify="right", no_wrap=True)
    for rank in sorted(totals):
        style = "bold red" if rank in slow else ""
        label = f"{rank} slow" if rank in slow else str(rank)
        for total, share in top_operators(totals[rank], limit):
            table.add_row(
                Text(label, style=style),
                elastic(total.name),
                f"{total.count}",
                f"{total.total_ns / 1e6:.1f}",
                f"{total.mean_ns / 1e3:.1f}",
                f"{total.p95_ns / 1e3:.1f}",
                f"{share:.1%}",
            )
            label = ""
    return table
