"""Applying a filter to batches.

A name is tested once per distinct text; records are then taken by mask. END and
DEVICE markers carry no name of their own: they follow the start (or mark) with
the same id, whatever buffer it came in.
"""

from __future__ import annotations

import numpy as np

from msmon.records.batch import Batch, Column, concatenate, join_columns
from msmon.records.filter import Filter
from msmon.records.kinds import ActivityKind, MarkerFlag, SourceKind
from msmon.records.layout import NAMELESS_KINDS

REMEMBERED_STARTS = 1 << 17
"""Open ranges whose verdict is remembered; beyond it, refused and then oldest ones go first."""

HELD_BATCHES = 64
"""Marker batches for which a follower waits for its start. MSPTI has at most as many buffers
out as the arena has slots (32), so a start that comes later than that never comes."""

HELD_RECORDS = 1 << 16
"""Followers held at most; beyond it the batch held longest goes first."""

_REMEMBERED_TEXTS = 16_384
"""Verdicts on names kept per kind, so that most names are tested once for many buffers."""

_NAMED_FLAGS = (
    MarkerFlag.INSTANTANEOUS
    | MarkerFlag.START
    | MarkerFlag.INSTANTANEOUS_WITH_DEVICE
    | MarkerFlag.START_WITH_DEVICE
)

_START_DTYPE = np.dtype([("id", "<u8"), ("kept", "?"), ("awaited", "<i8")])


class RecordFilter:
    """One filter in force. A changed filter is a new object.

    Rule for markers: host marks and host starts are matched by name; every other
    marker record is kept exactly if the host record with its id is. One that
    arrives first is held and comes out with the batch that brings its start, or
    is dropped when no start came with the next ``HELD_BATCHES`` batches.
    """

    def __init__(self, record_filter: Filter) -> None:
        self._filter = record_filter
        self._verdicts: dict[ActivityKind, dict[str, bool]] = {}
        self._starts = np.empty(0, _START_DTYPE)
        self._held: list[Batch] = []

    def apply(self, batch: Batch) -> Batch:
        """Return the records of ``batch`` that pass, as a batch of the same kind."""
        kind = batch.kind
        if not self._filter.needles or kind in NAMELESS_KINDS:
            return batch
        if not self._filter.keeps_kind(kind):
            return batch.select(np.zeros(len(batch), dtype=bool))
        if kind == ActivityKind.Marker:
            return self._apply_to_markers(batch)
        return batch.select(self._names_kept(batch))

    def _names_kept(self, batch: Batch) -> Column:
        verdicts = self._verdicts.setdefault(batch.kind, {})
        if len(verdicts) > _REMEMBERED_TEXTS:
            verdicts.clear()
        for text in batch.strings:
            if text not in verdicts:
                verdicts[text] = self._filter.keeps_name(batch.kind, text)
        kept = np.array([verdicts[text] for text in batch.strings], dtype=bool)
        mask: Column = kept.take(batch.records["name"].astype(np.int64))
        return mask

    def _apply_to_markers(self, batch: Batch) -> Batch:
        records = batch.records
        names_itself = (records["source_kind"] == SourceKind.HOST) & (
            (records["flag"] & _NAMED_FLAGS) != 0
        )
        mask = self._names_kept(batch) & names_itself
        starts = np.flatnonzero(names_itself)
        self._remember(records.take(starts), mask[starts])
        followers = ~names_itself
        verdict = self._follow(records["id"][followers])
        mask[followers] = verdict == 1
        released = self._release()
        late = np.zeros(len(batch), dtype=bool)
        late[followers] = verdict < 0
        self._hold(batch.select(late))
        return concatenate([*released, batch.select(mask)])

    def _remember(self, starts: Column, kept: Column) -> None:
        """Note the verdict on each start, and how many records will follow it."""
        flags = starts["flag"]
        added = np.empty(len(starts), _START_DTYPE)
        added["id"] = starts["id"]
        added["kept"] = kept
        added["awaited"] = np.select(
            [
                (flags & (MarkerFlag.START | MarkerFlag.INSTANTANEOUS_WITH_DEVICE)) != 0,
                (flags & MarkerFlag.START_WITH_DEVICE) != 0,
            ],
            [1, 3],
            0,
        )
        open_ones = added.take(np.flatnonzero(added["awaited"] > 0))
        joined = join_columns([self._starts, open_ones])
        joined = joined.take(np.argsort(joined["id"], kind="stable"))
        if len(joined) > REMEMBERED_STARTS:
            least = np.lexsort((joined["id"], joined["kept"]))[:-REMEMBERED_STARTS]
            joined = np.delete(joined, least)
        self._starts = joined

    def _follow(self, ids: Column) -> Column:
        """Return per id 1 (start was kept), 0 (refused) or -1 (not seen); count the id as met."""
        verdict = np.full(len(ids), -1, dtype=np.int64)
        if not len(self._starts) or not len(ids):
            return verdict
        places = np.searchsorted(self._starts["id"], ids)
        places[places == len(self._starts)] = 0
        seen = self._starts["id"][places] == ids
        verdict[seen] = self._starts["kept"][places[seen]]
        met = np.bincount(places[seen], minlength=len(self._starts))
        self._starts["awaited"] -= met
        self._starts = self._starts.take(np.flatnonzero(self._starts["awaited"] > 0))
        return verdict

    def _hold(self, late: Batch) -> None:
        self._held = [*self._held, late][-HELD_BATCHES:]
        while sum(map(len, self._held)) > HELD_RECORDS:
            del self._held[0]

    def _release(self) -> list[Batch]:
        released = []
        waiting = []
        for held in self._held:
            if not len(held):
                waiting.append(held)
                continue
            verdict = self._follow(held.records["id"])
            if (verdict == 1).any():
                released.append(held.select(verdict == 1))
            waiting.append(held.select(verdict < 0))
        self._held = waiting
        return released
