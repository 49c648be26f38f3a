"""A filter in force: batches in, the records that pass out.

A name is tested once per distinct text, then records are taken by mask. Markers need more: only
the host's first record of a range or mark has a name. All others of the same id *follow* it,
whatever buffer they come in. With the filter ``Marker:step``::

    batch 1   id 7 host start "step 1"     kept by its name
              id 8 host start "load"       refused by its name
              id 9 host end                unknown: held
    batch 2   id 7 host end                kept, as its start was
              id 8 host end                refused, as its start was
              id 9 host start "step 2"     kept by its name; the held end comes out behind it

A changed filter is a new object that goes on from the former one. A range that is open at that
moment ends as it began: its end is kept exactly if its start was. So no output gets a start
without its end, or an end without its start, because a filter was changed or lifted.
"""

from __future__ import annotations

import numpy as np

from msmon.records.batch import Batch, Column, concatenate, join_columns
from msmon.records.filter import Filter
from msmon.records.kinds import ActivityKind, MarkerFlag, SourceKind
from msmon.records.layout import NAMELESS_KINDS
from msmon.records.marker_slots import Role

REMEMBERED_STARTS = 1 << 17
"""Starts whose verdict is remembered while records are to follow them."""

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
_END_FLAGS = MarkerFlag.END | MarkerFlag.END_WITH_DEVICE

_START_DTYPE = np.dtype([("id", "<u8"), ("kept", "?"), ("open", "?"), ("awaited", "<i8")])
"""``open``: the host's end has not come; ``awaited``: how many records are to follow."""

_KEPT, _REFUSED, _UNKNOWN = 1, 0, -1
"""Verdicts on a follower; unknown: its start has not been seen."""


class RecordFilter:
    """One filter in force. Belongs to one thread; a changed filter is a new object.

    Host marks and host starts are matched by name; every other marker record is kept exactly
    if the host record with its id is. One that arrives first is held and comes out with the
    batch that brings its start, or is dropped when no start came with the next
    ``HELD_BATCHES`` batches.
    """

    def __init__(self, record_filter: Filter) -> None:
        self._filter = record_filter
        self._follows = bool(record_filter.needles)
        """Whether markers follow their start. Where none was ever refused, all are kept as they
        come, which costs nothing."""
        self._verdicts: dict[ActivityKind, dict[str, bool]] = {}
        self._starts = np.empty(0, _START_DTYPE)
        """Sorted by id."""
        self._held: list[Batch] = []
        """Followers without a start yet, one batch per batch applied; the oldest first."""

    def changed_to(self, record_filter: Filter, waiting: Column) -> RecordFilter:
        """Return the filter that goes on from this one, which is not to be used any more.

        ``waiting``: the kept markers that wait for others of their id, as
        :attr:`MarkerPairing.waiting <msmon.records.markers.MarkerPairing.waiting>` has them. A
        filter that kept everything has noted no starts; they are learnt from there.
        """
        new = RecordFilter(record_filter)
        new._starts = self._starts if self._follows else _starts_among(waiting)
        new._held = self._held
        new._follows = new._follows or self._follows
        return new

    def apply(self, batch: Batch) -> Batch:
        """Return the records of ``batch`` that pass, as a batch of the same kind."""
        kind = batch.kind
        if kind in NAMELESS_KINDS:
            return batch
        follows = kind == ActivityKind.Marker and self._follows
        if not self._filter.needles and not follows:
            return batch
        if not self._filter.keeps_kind(kind) and not (follows and len(self._starts)):
            return batch.select(np.zeros(len(batch), dtype=bool))
        return self._apply_to_markers(batch) if follows else batch.select(self._names_kept(batch))

    def _names_kept(self, batch: Batch) -> Column:
        """Return which records have a name that passes, shape (n,), bool."""
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
        has_name = (records["source_kind"] == SourceKind.HOST) & (
            (records["flag"] & _NAMED_FLAGS) != 0
        )
        mask = self._names_kept(batch) & has_name
        starts = np.flatnonzero(has_name)
        self._remember(records.take(starts), mask[starts])
        followers = np.flatnonzero(~has_name)
        verdict = self._follow(records.take(followers))
        mask[followers] = verdict == _KEPT
        released = self._release()
        unknown = np.zeros(len(batch), dtype=bool)
        unknown[followers] = verdict == _UNKNOWN
        self._hold(batch.select(unknown))
        return concatenate([*released, batch.select(mask)])

    def _remember(self, starts: Column, kept: Column) -> None:
        """Note the verdict on each start, and how many records will follow it.

        Beyond the bound those go first whose range has ended on the host, for their device part
        may never come; then refused ones, for nothing of them is wanted; then the oldest.
        """
        flags = starts["flag"]
        is_range = (flags & (MarkerFlag.START | MarkerFlag.START_WITH_DEVICE)) != 0
        device_records = np.select(
            [
                (flags & MarkerFlag.START_WITH_DEVICE) != 0,  # the device's start and end
                (flags & MarkerFlag.INSTANTANEOUS_WITH_DEVICE) != 0,
            ],
            [2, 1],
            0,
        )
        added = np.empty(len(starts), _START_DTYPE)
        added["id"] = starts["id"]
        added["kept"] = kept
        added["open"] = is_range
        added["awaited"] = device_records + is_range
        followed = added.take(np.flatnonzero(added["awaited"] > 0))
        joined = join_columns([self._starts, followed])
        joined = joined.take(np.argsort(joined["id"], kind="stable"))
        excess = len(joined) - REMEMBERED_STARTS
        if excess > 0:
            least_wanted = np.lexsort((joined["id"], joined["kept"], joined["open"]))
            joined = np.delete(joined, least_wanted[:excess])
        self._starts = joined

    def _follow(self, followers: Column) -> Column:
        """Return the verdict on each follower; a start is forgotten with its last follower."""
        verdict = np.full(len(followers), _UNKNOWN, dtype=np.int64)
        starts = self._starts
        if not len(starts) or not len(followers):
            return verdict
        ids = followers["id"]
        places = np.searchsorted(starts["id"], ids)
        places[places == len(starts)] = 0
        known = starts["id"][places] == ids
        verdict[known] = starts["kept"][places[known]]
        ends_range = (followers["source_kind"] == SourceKind.HOST) & (
            (followers["flag"] & _END_FLAGS) != 0
        )
        starts["open"][places[known & ends_range]] = False
        starts["awaited"] -= np.bincount(places[known], minlength=len(starts))
        self._starts = starts.take(np.flatnonzero(starts["awaited"] > 0))
        return verdict

    def _hold(self, unknown: Batch) -> None:
        self._held = [*self._held, unknown][-HELD_BATCHES:]
        while sum(map(len, self._held)) > HELD_RECORDS:
            del self._held[0]

    def _release(self) -> list[Batch]:
        """Return the held records whose start has come and was kept; hold the others on."""
        released = []
        waiting = []
        for held in self._held:
            if not len(held):
                waiting.append(held)
                continue
            verdict = self._follow(held.records)
            if (verdict == _KEPT).any():
                released.append(held.select(verdict == _KEPT))
            waiting.append(held.select(verdict == _UNKNOWN))
        self._held = waiting
        return released


def _starts_among(waiting: Column) -> Column:
    """Return the kept starts whose followers have not all come, sorted by id (``_START_DTYPE``).

    ``waiting`` has dtype ``PART_DTYPE``. A host start waits for the host's end, and where the
    device takes part for its start and end too; a namer for the device's alone. Of those one may
    be here already. So it may await one more than comes; such a start makes room before others.
    """
    role = waiting["role"]
    named = waiting.take(np.flatnonzero((role == Role.HOST_START) | (role == Role.NAMER)))
    starts = np.zeros(len(named), _START_DTYPE)
    starts["id"] = named["id"]
    starts["kept"] = True
    starts["open"] = named["role"] == Role.HOST_START
    starts["awaited"] = starts["open"] + 2 * named["device_awaited"]
    return starts.take(np.argsort(starts["id"], kind="stable"))
