"""What the simulation really recorded: the truth that end-to-end tests compare with."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from msmon.records.batch import Column
from msmon.records.kinds import HOST_DEVICE_ID, ActivityKind
from msmon.simulation.step import OperatorKey, OperatorTotals
from msmon.simulation.timeline import StepRecords


class Ledger:
    """Counts and summed durations per operator of every record that reached a buffer.

    A range counts when its end is recorded, even if recording began within it. ``dropped``
    counts records for which there was no buffer.
    """

    def __init__(self) -> None:
        self._row_of: dict[OperatorKey, int] = {}
        self._counts: Column = np.zeros(0, dtype=np.int64)
        self._totals_ns: Column = np.zeros(0, dtype=np.int64)
        self.dropped = 0

    def _row(self, key: OperatorKey) -> int:
        row = self._row_of.setdefault(key, len(self._row_of))
        if row == len(self._counts):
            self._counts = np.append(self._counts, 0)
            self._totals_ns = np.append(self._totals_ns, 0)
        return row

    def rows(self, part: StepRecords) -> Column:
        """Return the row of each record, int64; records without a name share one."""
        keys = np.stack([part.device_id, part.event_text.astype(np.int64)], axis=1)
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        kind, strings = part.batch.kind, part.batch.strings
        rows = [
            self._row((kind, device_id, strings[text])) for device_id, text in distinct.tolist()
        ]
        numbers: Column = np.array(rows, dtype=np.int64)[inverse.reshape(-1)]
        return numbers

    def add(self, rows: Column, durations_ns: Column) -> None:
        """Count recorded records."""
        self._counts += np.bincount(rows, minlength=len(self._counts))
        totals_ns = np.bincount(rows, durations_ns, minlength=len(self._totals_ns))
        self._totals_ns += totals_ns.astype(np.int64)

    def add_external_correlations(self, count: int) -> None:
        """Count recorded ExternalCorrelation records."""
        row = self._row((ActivityKind.ExternalCorrelation, HOST_DEVICE_ID, ""))
        self._counts[row] += count

    @property
    def emitted(self) -> dict[ActivityKind, int]:
        """Records per kind; kinds without any are left out."""
        emitted: dict[ActivityKind, int] = {}
        for (kind, _, _), row in self._row_of.items():
            count = int(self._counts[row])
            if count:
                emitted[kind] = emitted.get(kind, 0) + count
        return emitted

    @property
    def operators(self) -> dict[OperatorKey, OperatorTotals]:
        """Totals of every named operator with a record."""
        return {
            key: OperatorTotals(int(self._counts[row]), int(self._totals_ns[row]))
            for key, row in self._row_of.items()
            if key[2] and self._counts[row]
        }

    def write(self, path: str) -> None:
        """Write everything as JSON to a file."""
        content: dict[str, Any] = {
            "emitted": {kind.name: count for kind, count in sorted(self.emitted.items())},
            "dropped": self.dropped,
            "operators": [
                {
                    "kind": kind.name,
                    "device_id": device_id,
                    "name": name,
                    "count": totals.count,
                    "total_ns": totals.total_ns,
                }
                for (kind, device_id, name), totals in self.operators.items()
            ],
        }
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
