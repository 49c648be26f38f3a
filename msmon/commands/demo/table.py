"""What ``msmon demo`` shows: operator totals per rank, read from the windows that the
daemon writes, and the rank that the others wait for."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table
from rich.text import Text

from msmon.commands.status.table import elastic

LAG_THRESHOLD = 0.9
"""A rank lags when its mean collective lasts less than this share of the others' median."""


@dataclass
class OperatorTotal:
    """Sums of one operator on one rank over all windows so far."""

    count: int = 0
    total_ns: int = 0
    weighted_p95_ns: float = 0.0

    @property
    def mean_ns(self) -> float:
        """Mean duration."""
        return self.total_ns / self.count if self.count else 0.0

    @property
    def p95_ns(self) -> float:
        """95th percentile: that of each window, weighted by its count."""
        return self.weighted_p95_ns / self.count if self.count else 0.0

    def add(self, window: Mapping[str, Any]) -> None:
        """Add one window's line."""
        self.count += window["count"]
        self.total_ns += window["total_ns"]
        self.weighted_p95_ns += window["count"] * window["p95_ns"]


class MetricsFile:
    """The file of the ``metrics-json`` output, followed while the daemon writes it.

    What an earlier run left in it is passed over.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = path.stat().st_size if path.exists() else 0
        self.totals: dict[int, dict[tuple[str, str], OperatorTotal]] = defaultdict(
            lambda: defaultdict(OperatorTotal)
        )
        """Per rank, per (kind, operator name)."""

    def read(self) -> None:
        """Take in the complete lines written since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(complete) + len(newline)
        for line in complete.splitlines():
            window = json.loads(line)
            if window["kind"] != "gap":
                self.totals[window["rank"]][window["kind"], window["name"]].add(window)


def mean_collective_ns(operators: Mapping[tuple[str, str], OperatorTotal]) -> float | None:
    """Return the mean duration of a rank's collectives, None when it had none."""
    collectives = [total for (kind, _), total in operators.items() if kind == "Communication"]
    count = sum(total.count for total in collectives)
    return sum(total.total_ns for total in collectives) / count if count else None


def lagging_rank(totals: Mapping[int, Mapping[tuple[str, str], OperatorTotal]]) -> int | None:
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
    operators: Mapping[tuple[str, str], OperatorTotal], limit: int
) -> Iterable[tuple[str, OperatorTotal, float]]:
    """Return (name, total, share of the rank's operator time), longest total first."""
    whole_ns = sum(total.total_ns for total in operators.values()) or 1
    ordered = sorted(operators.items(), key=lambda item: -item[1].total_ns)
    return [(name, total, total.total_ns / whole_ns) for (_, name), total in ordered[:limit]]


def operator_table(
    totals: Mapping[int, Mapping[tuple[str, str], OperatorTotal]], limit: int, title: str
) -> Table:
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
        for name, total, share in top_operators(totals[rank], limit):
            table.add_row(
                Text(label, style=style),
                elastic(name),
                f"{total.count}",
                f"{total.total_ns / 1e6:.1f}",
                f"{total.mean_ns / 1e3:.1f}",
                f"{total.p95_ns / 1e3:.1f}",
                f"{share:.1%}",
            )
            label = ""
    return table


def verdict(totals: Mapping[int, Mapping[tuple[str, str], OperatorTotal]]) -> str:
    """Say which rank lags, with the figures that show it."""
    lagging = lagging_rank(totals)
    if lagging is None:
        return "No rank lags: collectives last about as long on all of them."
    others = [mean_collective_ns(totals[rank]) or 0.0 for rank in totals if rank != lagging]
    own_ns = mean_collective_ns(totals[lagging]) or 0.0
    return (
        f"Rank {lagging} lags: its collectives last {own_ns / 1e3:.0f} µs on average, the others' "
        f"{median(others) / 1e3:.0f} µs.\nThe last to arrive at a collective waits least."
    )
