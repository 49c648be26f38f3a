"""The operators of each rank since the start: the demo's daemon writes them, the demo reads them.

The daemon's side is a sink that only the private daemon of the demo has. It merges all windows of a
rank into one and asks that one for the 95th percentile. An average of the percentiles of many
windows would be another number: two windows with 95 % at 1 ms and at 9 ms have none at 5 ms.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msmon.records.merging import merge
from msmon.records.windows import Window, operator_rows, quantile_ns
from msmon.sessions import SessionEnd, SessionInfo
from msmon.settings.options import Option, text_up_to
from msmon.sinks.base import SessionOutput, Sink


@dataclass(frozen=True)
class OperatorTotal:
    """One operator on one rank over all windows so far."""

    kind: str
    name: str
    count: int
    total_ns: int
    p95_ns: float

    @property
    def mean_ns(self) -> float:
        """Mean duration."""
        return self.total_ns / self.count if self.count else 0.0


Totals = Mapping[int, list[OperatorTotal]]
"""Rank to its operators."""


class TotalsSink(Sink):
    """Keeps one file that holds the totals of every rank, and replaces it with each commit."""

    NAME = "demo-totals"
    HELP = "The operators of every rank since the start, in one JSON file."
    OPTIONS = (Option("path", "path", "file to replace", text_up_to(4096), metavar="FILE"),)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._ranks: dict[str, int] = {}
        """Session id → rank."""
        self._windows: dict[int, Window] = {}
        """Rank → all its windows so far, merged."""

    def open_session(self, session: SessionInfo) -> SessionOutput:
        """Note which rank the session is of."""
        self._ranks[session.session_id] = session.process.rank
        return SessionOutput()

    def write_window(self, session_id: str, seq: int, window: Window) -> None:
        """Merge a window into that of its rank."""
        rank = self._ranks[session_id]
        known = self._windows.get(rank)
        self._windows[rank] = merge([known, window] if known else [window])

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        """Forget the session; its rank's totals stay."""
        self._ranks.pop(session_id, None)

    def commit(self) -> None:
        """Replace the file as a whole, so that its reader never meets half of it."""
        path = Path(self.options["path"])
        new = path.with_suffix(".new")
        document = {rank: _totals(window) for rank, window in self._windows.items()}
        new.write_text(json.dumps(document), encoding="ascii")
        os.replace(new, path)


def _totals(window: Window) -> list[dict[str, Any]]:
    return [
        asdict(
            OperatorTotal(
                row.kind.name, row.name, row.count, row.total_ns, quantile_ns(window, index, 0.95)
            )
        )
        for index, row in enumerate(operator_rows(window))
    ]


def read_totals(path: Path) -> Totals:
    """Return what the sink wrote last; empty before its first commit."""
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return {
        int(rank): [OperatorTotal(**fields) for fields in operators]
        for rank, operators in document.items()
    }
