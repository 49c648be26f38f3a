"""Pairing markers: start and end records to ranges, host names to device ranges.

MSPTI writes one record per end of a range and per source, names only the host's
first one, and promises no order across buffers (mspti_activity.h,
msptiActivityMarker). Pairing works on whole columns: records of one id share a
row of slots, one slot per role, and a row is complete when its slots are filled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from msmon.records.batch import Batch, Column, decode_texts, encode_texts, join_columns, printable
from msmon.records.dtypes import EVENT_DTYPE
from msmon.records.kinds import HOST_DEVICE_ID, MarkerFlag, SourceKind
from msmon.records.layout import EVENT_TEXT_FIELDS
from msmon.records.tables import arrow_table, numpy_columns

OPEN_RECORDS = 1 << 16
"""Records that may wait for their counterpart; beyond it the oldest go first."""

LATE_BATCHES = 64
"""Marker batches for which an end or a device record waits for its host start. MSPTI has at
most as many buffers out as the arena has slots (32), so nothing comes later than that."""

_PART_DTYPE = np.dtype(
    [
        ("id", "<u8"),
        ("timestamp_ns", "<u8"),
        ("first", "<u4"),  # process or device
        ("second", "<u4"),  # thread or stream
        ("name", "<u4"),
        ("domain", "<u4"),
        ("age", "<u4"),  # batch in which it came
        ("role", "u1"),
        ("device_awaited", "?"),
    ]
)

_HOST_START, _HOST_END, _DEVICE_START, _DEVICE_END, _HOST_MARK, _DEVICE_MARK, _NAMED = range(7)
"""Roles of a record within its id. _NAMED is a host start or mark whose own event is out and
which only lends its name to the device's."""

_ROLES = 7
_STARTS = (_HOST_START, _HOST_MARK, _NAMED)


@dataclass(frozen=True)
class MarkerEvents:
    """Ranges and marks that one batch completed, and what went unpaired since the last one.

    ``events`` has shape (n,) and dtype ``EVENT_DTYPE``. ``orphan_ends``: ends and
    device records dropped because no host start came; ``evicted_starts``: host
    starts dropped because too many were open; ``open_ranges``: host starts that
    still wait for their end.
    """

    events: Column
    strings: tuple[str, ...]
    orphan_ends: int = 0
    evicted_starts: int = 0
    open_ranges: int = 0

    def __len__(self) -> int:
        return len(self.events)

    def to_numpy(self) -> dict[str, Column]:
        """Return field name → contiguous array of shape (n,); text fields hold str objects."""
        return numpy_columns(self.events, self.strings, EVENT_TEXT_FIELDS)

    def to_arrow(self) -> Any:
        """Return a ``pyarrow.Table``, texts as dictionaries. Raises UsageError without pyarrow."""
        strings = [printable(text) for text in self.strings]
        return arrow_table(self.events, strings, EVENT_TEXT_FIELDS)


class MarkerPairing:
    """Pairs the markers of one process across batches.

    ``limit`` bounds the records that wait. Records of one id may come in any order
    and in different batches; a second record of the same role and id while the
    first one waits counts as an orphan.
    """

    def __init__(self, limit: int = OPEN_RECORDS) -> None:
        self._limit = limit
        self._waiting = np.empty(0, _PART_DTYPE)
        self._texts: dict[str, int] = {"": 0}
        self._age = 0

    def add(self, batch: Batch) -> MarkerEvents:
        """Take a batch of markers; return the events that are complete now."""
        self._age += 1
        parts = join_columns([self._waiting, self._parts(batch)])
        rows, slots, doubles = _slots(parts)
        events = join_columns(
            [
                _host_ranges(parts, slots),
                _marks(parts, slots),
                _device_ranges(parts, slots),
            ]
        )
        orphans, evicted = self._keep(parts, rows, slots)
        events, strings = self._with_strings(events)
        open_ranges = int((self._waiting["role"] == _HOST_START).sum())
        return MarkerEvents(events, strings, orphans + doubles, evicted, open_ranges)

    def to_frames(self) -> tuple[bytes, bytes]:
        """Return the waiting records and their texts as bytes, to go on in another process."""
        return self._waiting.tobytes(), encode_texts(tuple(self._texts))

    def restore(self, waiting: bytes, texts: bytes) -> None:
        """Go on from ``to_frames``. Raises ValueError when the frames don't fit together."""
        parts = np.frombuffer(waiting, _PART_DTYPE).copy()
        known = decode_texts(texts)
        if len(parts) and (
            max(int(parts["name"].max()), int(parts["domain"].max())) >= len(known)
            or int(parts["role"].max()) >= _ROLES
        ):
            raise ValueError("waiting markers refer to a text or role that does not exist")
        self._waiting = parts
        self._texts = {text: place for place, text in enumerate(known)}
        self._age = int(parts["age"].max()) if len(parts) else 0

    def _parts(self, batch: Batch) -> Column:
        """Restate marker records as parts, with roles and with our own text ids."""
        records = batch.records
        parts = np.zeros(len(records), _PART_DTYPE)
        known = self._texts
        ids = np.array([known.setdefault(text, len(known)) for text in batch.strings], np.uint32)
        flags = records["flag"]
        parts["id"] = records["id"]
        parts["timestamp_ns"] = records["timestamp_ns"]
        parts["first"] = records["process_or_device_id"]
        parts["second"] = records["thread_or_stream_id"]
        parts["name"] = ids[records["name"]]
        parts["domain"] = ids[records["domain"]]
        parts["age"] = self._age
        on_device = records["source_kind"] == SourceKind.DEVICE
        starts = (flags & (MarkerFlag.START | MarkerFlag.START_WITH_DEVICE)) != 0
        ends = (flags & (MarkerFlag.END | MarkerFlag.END_WITH_DEVICE)) != 0
        host_role = np.where(starts, _HOST_START, np.where(ends, _HOST_END, _HOST_MARK))
        device_role = np.where(starts, _DEVICE_START, np.where(ends, _DEVICE_END, _DEVICE_MARK))
        parts["role"] = np.where(on_device, device_role, host_role)
        with_device = MarkerFlag.START_WITH_DEVICE | MarkerFlag.INSTANTANEOUS_WITH_DEVICE
        parts["device_awaited"] = ~on_device & ((flags & with_device) != 0)
        return parts

    def _keep(self, parts: Column, rows: Column, slots: Column) -> tuple[int, int]:
        """Keep what still waits, within the bounds; return (orphan ends, evicted starts)."""
        kept = _still_waiting(parts, slots)
        waiting = parts.take(np.flatnonzero(kept))
        is_start = np.isin(waiting["role"], _STARTS)
        late = ~is_start & (self._age - waiting["age"] >= LATE_BATCHES)
        excess = len(waiting) - int(late.sum()) - self._limit
        dropped = late
        if excess > 0:
            dropped = late.copy()
            dropped[np.flatnonzero(~late)[:excess]] = True
        self._waiting = waiting.take(np.flatnonzero(~dropped))
        return int((dropped & ~is_start).sum()), int((dropped & is_start).sum())

    def _with_strings(self, events: Column) -> tuple[Column, tuple[str, ...]]:
        """Renumber texts so that the events carry only their own; forget the unused."""
        ours = list(self._texts)
        used = _renumber(events, len(ours))
        strings = tuple(ours[number] for number in used.tolist())
        if len(ours) > 2 * len(self._waiting) + 4096:
            self._forget_texts(ours)
        return events, strings

    def _forget_texts(self, ours: list[str]) -> None:
        used = _renumber(self._waiting, len(ours))
        self._texts = {ours[number]: place for place, number in enumerate(used.tolist())}


def _renumber(rows: Column, texts: int) -> Column:
    """Number the texts that rows use from 0 on, in place; return their old numbers."""
    is_used = np.zeros(texts, dtype=bool)
    is_used[0] = True  # the empty text stays first
    for field in EVENT_TEXT_FIELDS:
        is_used[rows[field]] = True
    number = np.cumsum(is_used, dtype=np.uint32) - np.uint32(1)
    for field in EVENT_TEXT_FIELDS:
        rows[field] = number[rows[field]]
    used: Column = np.flatnonzero(is_used)
    return used


def _slots(parts: Column) -> tuple[Column, Column, int]:
    """Return (row of each part, slots, doubles): slots[row, role] is a part or -1.

    A doubled role keeps its first part.
    """
    distinct, rows = np.unique(parts["id"], return_inverse=True)
    slots = np.full((len(distinct), _ROLES), -1, dtype=np.int64)
    order = np.arange(len(parts))[::-1]  # the last assignment wins, so assign the first last
    slots[rows[order], parts["role"][order]] = order
    return rows, slots, len(parts) - int((slots >= 0).sum())


def _host_ranges(parts: Column, slots: Column) -> Column:
    full = (slots[:, _HOST_START] >= 0) & (slots[:, _HOST_END] >= 0)
    return _host_events(parts.take(slots[full, _HOST_START]), parts.take(slots[full, _HOST_END]))


def _marks(parts: Column, slots: Column) -> Column:
    host = parts.take(slots[slots[:, _HOST_MARK] >= 0, _HOST_MARK])
    on_host = _host_events(host, host)
    namers = _namers(slots)
    full = (namers >= 0) & (slots[:, _DEVICE_MARK] >= 0)
    device = parts.take(slots[full, _DEVICE_MARK])
    on_device = _device_events(parts.take(namers[full]), device, device)
    marks = join_columns([on_host, on_device])
    marks["instantaneous"] = True
    return marks


def _device_ranges(parts: Column, slots: Column) -> Column:
    namers = _namers(slots)
    full = (namers >= 0) & (slots[:, _DEVICE_START] >= 0) & (slots[:, _DEVICE_END] >= 0)
    return _device_events(
        parts.take(namers[full]),
        parts.take(slots[full, _DEVICE_START]),
        parts.take(slots[full, _DEVICE_END]),
    )


def _namers(slots: Column) -> Column:
    """Return per row the part that names the id, or -1."""
    namers: Column = slots[:, list(_STARTS)].max(axis=1)
    return namers


def _host_events(starts: Column, ends: Column) -> Column:
    events = _events(starts, starts["timestamp_ns"], ends["timestamp_ns"])
    events["device_id"] = HOST_DEVICE_ID
    events["stream_id"] = HOST_DEVICE_ID
    events["source_kind"] = SourceKind.HOST
    events["end_process_id"] = ends["first"]
    events["end_thread_id"] = ends["second"]
    return events


def _device_events(namers: Column, starts: Column, ends: Column) -> Column:
    events = _events(namers, starts["timestamp_ns"], ends["timestamp_ns"])
    events["device_id"] = starts["first"]
    events["stream_id"] = starts["second"]
    events["source_kind"] = SourceKind.DEVICE
    events["end_process_id"] = namers["first"]
    events["end_thread_id"] = namers["second"]
    return events


def _events(namers: Column, start_ns: Column, end_ns: Column) -> Column:
    events = np.zeros(len(namers), EVENT_DTYPE)
    events["id"] = namers["id"]
    events["start_ns"] = start_ns
    events["end_ns"] = end_ns
    events["name"] = namers["name"]
    events["domain"] = namers["domain"]
    events["process_id"] = namers["first"]
    events["thread_id"] = namers["second"]
    return events


def _still_waiting(parts: Column, slots: Column) -> Column:
    """Return which parts wait on; a start whose own event is out becomes a namer, in place."""
    filled = slots >= 0
    kept = filled.copy()
    ranged = filled[:, _HOST_START] & filled[:, _HOST_END]
    named = filled[:, _HOST_START] | filled[:, _HOST_MARK] | filled[:, _NAMED]
    device_done = named & (
        filled[:, _DEVICE_MARK] | (filled[:, _DEVICE_START] & filled[:, _DEVICE_END])
    )
    for role in (_HOST_START, _HOST_MARK, _NAMED):
        done = slots[device_done & filled[:, role], role]
        parts["device_awaited"][done] = False
    kept[ranged, _HOST_END] = False
    for role in (_DEVICE_START, _DEVICE_END, _DEVICE_MARK):
        kept[device_done, role] = False
    for role, out in ((_HOST_START, ranged), (_HOST_MARK, filled[:, _HOST_MARK])):
        spent = slots[out & filled[:, role], role]
        parts["role"][spent] = _NAMED
    mask = np.zeros(len(parts), dtype=bool)
    mask[slots[kept]] = True
    mask &= (parts["role"] != _NAMED) | parts["device_awaited"]
    return mask
