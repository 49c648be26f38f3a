"""What one run of a Monitor collected: filtered, paired and bounded, per kind."""

from __future__ import annotations

from msmon.monitor_api.activities import Table
from msmon.records.batch import Batch
from msmon.records.durations import are_spans
from msmon.records.filter import Filter
from msmon.records.kinds import ActivityKind
from msmon.records.markers import MarkerEvents, MarkerPairing
from msmon.records.record_filter import RecordFilter


class Store:
    """What one run collected.

    Written by the recording's thread: ``prepare`` without a lock, ``keep`` under the monitor's,
    since other threads read the tables meanwhile.
    """

    def __init__(
        self, kinds: frozenset[ActivityKind], record_filter: Filter, max_records: int
    ) -> None:
        self.kinds = kinds
        self.tables: dict[ActivityKind, list[Table]] = {kind: [] for kind in kinds}
        self.dropped: dict[str, int] = {}
        self.untimed: dict[str, int] = {}
        self._filter = RecordFilter(record_filter)
        self._pairing = MarkerPairing()
        self.evicted_ranges = 0
        self.failed = 0
        """Records that an unforeseen error kept from being filtered or paired."""
        self.error = ""
        """The last of these errors."""
        self._room = max_records

    def prepare(self, batch: Batch) -> Table | None:
        """Filter a batch; markers become ranges and marks.

        None where an unforeseen error kept it from that. It costs this batch, which is counted.
        """
        try:
            return self._prepared(batch)
        except Exception as error:  # noqa: BLE001 - the other batches are kept
            self.failed += len(batch)
            self.error = f"internal error: {error!r}"
            return None

    def _prepared(self, batch: Batch) -> Table:
        kept = self._filter.apply(batch)
        if kept.kind is not ActivityKind.Marker:
            return kept
        paired = self._pairing.add(kept)
        self.evicted_ranges += paired.evicted_starts
        return paired

    def keep(self, kind: ActivityKind, table: Table) -> None:
        """Keep a table as far as there is room; count what does not fit."""
        if kind not in self.tables:
            return
        excess = max(0, len(table) - self._room)
        if excess:
            self.dropped[kind.name] = self.dropped.get(kind.name, 0) + excess
            table = _first(table, len(table) - excess)
        if len(table):
            self.tables[kind].append(table)
            self._room -= len(table)
            untimed = _untimed(table)
            if untimed:
                self.untimed[kind.name] = self.untimed.get(kind.name, 0) + untimed


def _untimed(table: Table) -> int:
    """Return how many records of a table have a start and an end that give no duration."""
    rows = table.events if isinstance(table, MarkerEvents) else table.records
    if "start_ns" not in (rows.dtype.names or ()):
        return 0
    return len(rows) - int(are_spans(rows["start_ns"], rows["end_ns"]).sum())


def _first(table: Table, count: int) -> Table:
    if isinstance(table, MarkerEvents):
        return MarkerEvents(table.events[:count].copy(), table.strings)
    return Batch(table.kind, table.records[:count].copy(), table.strings)
