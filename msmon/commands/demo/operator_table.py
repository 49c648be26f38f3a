"""What ``msmon demo`` shows: the top operators of each rank, and whom the others wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from rich.table import Table
from rich.text import Text

from msmon.commands.demo.totals import OperatorTotal, Totals
from msmon.commands.status.process_table import elastic

LAG_THRESHOLD = 0.9
"""A rank lags when its mean collective lasts less than this share of the others' median.

Example: where the others' collectives last 900 µs, those of a rank that lags last under 810 µs.
"""


def mean_collective_ns(operators: Sequence[OperatorTotal]) -> float | None:
    """Return the mean duration of a rank's collectives, None when it had none."""
    collectives = [total for total in operators if total.kind == "Communication"]
    count = sum(total.count for total in collectives)
    return sum(total.total_ns for total in collectives) / count if count else None


def lagging_rank(totals: Totals) -> int | None:
    """Return the rank that the others wait for, None when none stands out.

    In a collective everybody waits for the last to arrive, who waits least: its
    collectives are the shortest.
    """
    means = {rank: mean_collective_ns(operators) for rank, operators in totals.items()}
    known = {rank: mean for rank, mean in means.items() if mean is not None}
    if len(known) < 2:
        return None
    shortest = min(known, key=known.__getitem__)
    others = median(mean for rank, mean in known.items() if rank != shortest)
    return shortest if known[shortest] < LAG_THRESHOLD * others else None


def top_operators(
    operators: Sequence[OperatorTotal], limit: int
) -> Iterable[tuple[OperatorTotal, float]]:
    """Return (operator, share of the rank's operator time), longest total first."""
    whole_ns = sum(total.total_ns for total in operators) or 1
    ordered = sorted(operators, key=lambda total: -total.total_ns)
    return [(total, total.total_ns / whole_ns) for total in ordered[:limit]]


def operator_table(totals: Totals, limit: int, title: str) -> Table:
    """Return the table of the top ``limit`` operators of each rank, the lagging one marked."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, title=title, title_justify="left")
    table.add_column("RANK", no_wrap=True)
    table.add_column("OPERATOR")
    for name in ("COUNT", "TOTAL ms", "MEAN µs", "P95 µs", "SHARE"):
        table.add_column(name, justify="right", no_wrap=True)
    lagging = lagging_rank(totals)
    for rank in sorted(totals):
        style = "bold red" if rank == lagging else ""
        label = f"{rank} lags" if rank == lagging else str(rank)
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


def verdict(totals: Totals) -> str:
    """Say which rank lags, with the figures that show it; nothing can be said of a single one."""
    if len(totals) < 2:
        return "One rank has nobody to wait for. With --ranks 2 or more the demo shows who lags."
    lagging = lagging_rank(totals)
    if lagging is None:
        return "No rank lags: collectives last about as long on all of them."
    others = [mean_collective_ns(totals[rank]) or 0.0 for rank in totals if rank != lagging]
    own_ns = mean_collective_ns(totals[lagging]) or 0.0
    return (
        f"Rank {lagging} lags: its collectives last {own_ns / 1e3:.0f} µs on average, the others' "
        f"{median(others) / 1e3:.0f} µs.\nThe last to arrive at a collective waits least."
    )
