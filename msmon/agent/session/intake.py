"""What becomes of the records of one session: filtered, measured, shipped, and counted."""

from __future__ import annotations

from collections import Counter

from msmon.agent.link.uplink import Uplink
from msmon.agent.session.losses import FailedBatches
from msmon.agent.session.window_series import WindowSeries
from msmon.records.batch import Batch
from msmon.records.filter import Filter
from msmon.records.record_filter import RecordFilter
from msmon.sessions import Counts, Drops, DropStage, merged_drops


class Intake:
    """Takes the batches of one session. Written by the collector's thread only.

    ``ships_records``: whether the records go to the daemon, or their statistics alone. What an
    unforeseen error keeps from being handled costs that batch: it is counted in ``failed``.
    """

    def __init__(
        self,
        session_id: str,
        record_filter: Filter,
        ships_records: bool,
        uplink: Uplink,
        windows: WindowSeries,
        failed: FailedBatches,
    ) -> None:
        self.windows = windows
        self.failed = failed
        self.ships_records = ships_records
        self._session_id = session_id
        self._uplink = uplink
        self._filter = RecordFilter(record_filter)
        self._received: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()

    def take(self, batch: Batch) -> None:
        """Filter a batch, and hand what is kept to the window and to the uplink."""
        name = batch.kind.name
        try:
            kept = self._filter.apply(batch)
        except Exception as error:  # noqa: BLE001 - it costs this batch only, and is counted
            self.failed.lose(DropStage.DECODE, batch, error)
            return
        self._received[name] += len(batch)
        self._kept[name] += len(kept)
        try:
            self.windows.add(kept, received=len(batch))
        except Exception as error:  # noqa: BLE001 - it costs this batch only, and is counted
            self.failed.lose(DropStage.WINDOWS, kept, error)
        if not (self.ships_records and len(kept)):
            return
        try:
            self._uplink.put_records(self._session_id, kept)
        except Exception as error:  # noqa: BLE001 - it costs this batch only, and is counted
            self.failed.lose(DropStage.UPLINK, kept, error)

    def change_filter(self, record_filter: Filter) -> None:
        """Filter by this from now on; ranges that are open end as they began."""
        self._filter = self._filter.changed_to(record_filter, self.windows.waiting_markers)

    def has_room(self, size_bytes: int) -> bool:
        """Whether a buffer of this size can be taken without a loss in the uplink."""
        if not self.ships_records:
            return True
        return self._uplink.has_room_for_records(self._session_id, size_bytes)

    def counts(self, before: Drops, at_end: bool) -> Counts:
        """Return the records so far, and the drops of every stage in this process.

        ``before``: what was lost before it came here. ``at_end``: ranges still open count too.
        """
        markers: Drops = {}
        if self.windows.evicted_ranges:
            markers[DropStage.MARKERS] = self.windows.evicted_ranges
        if at_end and self.windows.open_ranges:
            markers[DropStage.OPEN] = self.windows.open_ranges
        of_uplink = self._uplink.dropped(self._session_id)
        drops = merged_drops(before, self.failed.drops, markers, of_uplink)
        return Counts(dict(self._received), dict(+self._kept), dict(+self.windows.untimed), drops)
