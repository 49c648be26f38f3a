"""The columns behind marker pairing: records of one id side by side, one slot per role.

Functions on whole columns without any state; :mod:`msmon.records.markers` keeps what waits
between batches. Say a batch holds the host's start and end of range 7, and of range 8 the
host's start alone::

    parts   0: id 7 HOST_START    1: id 7 HOST_END    2: id 8 HOST_START
    slots   row 0 (id 7): HOST_START → 0, HOST_END → 1, all others → -1
            row 1 (id 8): HOST_START → 2, all others → -1

Row 0 is a finished host range, row 1 waits.
"""

from __future__ import annotations

import enum

import numpy as np

from msmon.records.batch import Column, join_columns
from msmon.records.dtypes import EVENT_DTYPE
from msmon.records.kinds import HOST_DEVICE_ID, MarkerFlag, SourceKind

PART_DTYPE = np.dtype(
    [
        ("id", "<u8"),
        ("timestamp_ns", "<u8"),
        ("first", "<u4"),  # process or device
        ("second", "<u4"),  # thread or stream
        ("name", "<u4"),
        ("domain", "<u4"),
        ("age", "<u4"),  # number of the batch in which it came
        ("role", "u1"),
        ("device_awaited", "?"),
    ]
)
"""A marker record with its role. Outputs keep waiting parts in this form over a restart, so it
can't change without a new name in their state. ``device_awaited``: the device writes records
with this id as well, and they have not all come."""


class Role(enum.IntEnum):
    """What a record is within its id.

    A host start or mark whose own event is complete becomes ``NAMER``: it only waits to lend its
    name, domain and thread to the device's event, whose records carry none.
    """

    HOST_START = 0
    HOST_END = 1
    DEVICE_START = 2
    DEVICE_END = 3
    HOST_MARK = 4
    DEVICE_MARK = 5
    NAMER = 6


_WITH_NAME = (Role.HOST_START, Role.HOST_MARK, Role.NAMER)


def parts_of(records: Column, text_ids: Column, age: int) -> Column:
    """Restate marker records as parts; ``text_ids`` maps the batch's text ids to the caller's."""
    parts = np.zeros(len(records), PART_DTYPE)
    flags = records["flag"]
    parts["id"] = records["id"]
    parts["timestamp_ns"] = records["timestamp_ns"]
    parts["first"] = records["process_or_device_id"]
    parts["second"] = records["thread_or_stream_id"]
    parts["name"] = text_ids[records["name"]]
    parts["domain"] = text_ids[records["domain"]]
    parts["age"] = age
    on_device = records["source_kind"] == SourceKind.DEVICE
    starts = (flags & (MarkerFlag.START | MarkerFlag.START_WITH_DEVICE)) != 0
    ends = (flags & (MarkerFlag.END | MarkerFlag.END_WITH_DEVICE)) != 0
    host_role = np.where(starts, Role.HOST_START, np.where(ends, Role.HOST_END, Role.HOST_MARK))
    device_role = np.where(
        starts, Role.DEVICE_START, np.where(ends, Role.DEVICE_END, Role.DEVICE_MARK)
    )
    parts["role"] = np.where(on_device, device_role, host_role)
    with_device = MarkerFlag.START_WITH_DEVICE | MarkerFlag.INSTANTANEOUS_WITH_DEVICE
    parts["device_awaited"] = ~on_device & ((flags & with_device) != 0)
    return parts


def slots_of(parts: Column) -> tuple[Column, int]:
    """Return (slots, doubles): slots[row, role] is the place of a part, or -1; a row is an id.

    Of parts with the same id and role the first one keeps the slot; the others are doubles.
    """
    distinct, rows = np.unique(parts["id"], return_inverse=True)
    slots = np.full((len(distinct), len(Role)), -1, dtype=np.int64)
    order = np.arange(len(parts))[::-1]  # the last assignment wins, so assign the first last
    slots[rows[order], parts["role"][order]] = order
    return slots, len(parts) - int((slots >= 0).sum())


def complete_events(parts: Column, slots: Column) -> Column:
    """Return the events (``EVENT_DTYPE``) of all rows whose slots are filled."""
    return join_columns(
        [_host_ranges(parts, slots), _marks(parts, slots), _device_ranges(parts, slots)]
    )


def still_waiting(parts: Column, slots: Column) -> Column:
    """Return the parts that wait on, in their order; one whose own event is out is a NAMER."""
    filled = slots >= 0
    kept = filled.copy()
    ranged = filled[:, Role.HOST_START] & filled[:, Role.HOST_END]
    named = filled[:, Role.HOST_START] | filled[:, Role.HOST_MARK] | filled[:, Role.NAMER]
    device_done = named & (
        filled[:, Role.DEVICE_MARK] | (filled[:, Role.DEVICE_START] & filled[:, Role.DEVICE_END])
    )
    for role in _WITH_NAME:
        done = slots[device_done & filled[:, role], role]
        parts["device_awaited"][done] = False
    kept[ranged, Role.HOST_END] = False
    for role in (Role.DEVICE_START, Role.DEVICE_END, Role.DEVICE_MARK):
        kept[device_done, role] = False
    for role, out in ((Role.HOST_START, ranged), (Role.HOST_MARK, filled[:, Role.HOST_MARK])):
        spent = slots[out & filled[:, role], role]
        parts["role"][spent] = Role.NAMER
    mask = np.zeros(len(parts), dtype=bool)
    mask[slots[kept]] = True
    mask &= (parts["role"] != Role.NAMER) | parts["device_awaited"]
    return parts.take(np.flatnonzero(mask))


def _host_ranges(parts: Column, slots: Column) -> Column:
    starts, ends = slots[:, Role.HOST_START], slots[:, Role.HOST_END]
    full = (starts >= 0) & (ends >= 0)
    return _host_events(parts.take(starts[full]), parts.take(ends[full]))


def _marks(parts: Column, slots: Column) -> Column:
    host_marks, device_marks = slots[:, Role.HOST_MARK], slots[:, Role.DEVICE_MARK]
    host = parts.take(host_marks[host_marks >= 0])
    on_host = _host_events(host, host)
    namers = _namers(slots)
    full = (namers >= 0) & (device_marks >= 0)
    device = parts.take(device_marks[full])
    on_device = _device_events(parts.take(namers[full]), device, device)
    marks = join_columns([on_host, on_device])
    marks["instantaneous"] = True
    return marks


def _device_ranges(parts: Column, slots: Column) -> Column:
    namers = _namers(slots)
    starts, ends = slots[:, Role.DEVICE_START], slots[:, Role.DEVICE_END]
    full = (namers >= 0) & (starts >= 0) & (ends >= 0)
    return _device_events(
        parts.take(namers[full]), parts.take(starts[full]), parts.take(ends[full])
    )


def _namers(slots: Column) -> Column:
    """Return per row the part that names the id, or -1."""
    namers: Column = slots[:, list(_WITH_NAME)].max(axis=1)
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
