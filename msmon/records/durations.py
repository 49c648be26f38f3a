"""What a time is and what lasts how long: the one rule, and the columns that statistics need.

MSPTI promises nanoseconds since the Unix epoch. It delivers other numbers too: raw counters of a
device that is not calibrated yet (they count from the start of the device or host), 0 for
"never", and all bits set for "not yet". A mean over one such number is nonsense, so whoever
measures or draws asks here first, leaves out what is none, and counts it as untimed::

    start                end                  usable
    1790000000000000000  1790000000000000700  yes
    1790000000000000000  18446744073709551615 no: all bits set is no time
    52871003             52871959             no: counters
    1790000000000000700  1790000000000000000  no: the end lies before the start

Statistics take device, label, start and end of each record. A label is the operator that a record
counts for. Kinds without names use the name of the operation or of the copy direction; markers
use name and domain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from msmon.records.batch import Batch, Column
from msmon.records.collectives import COLLECTIVE_KINDS, labels_of_collectives
from msmon.records.kinds import HOST_DEVICE_ID, ActivityKind
from msmon.records.layout import LAYOUTS
from msmon.records.markers import MarkerEvents

EARLIEST_NS = 10**18
"""September 2001. A counter of 1 GHz reaches this number after 31 years."""

LATEST_NS = 4 * 10**18
"""October 2096, exclusive. It leaves room for sums in signed 64-bit numbers."""

_EARLIEST = np.uint64(EARLIEST_NS)
_LATEST = np.uint64(LATEST_NS)

Label = tuple[str, str, int]
"""(name, domain, size class). The domain is that of a marker, or the communicator of a collective;
the size class is that of a collective. Elsewhere they are empty and 0."""

MEMSET_NAME = "memset"
UNKNOWN_OPERATION = "UNKNOWN_OPERATION"
"""Name for a number that the header doesn't define."""


def are_times(values_ns: Column) -> Column:
    """Return which numbers (uint64, shape (n,)) are wall clock times in ns: bool, shape (n,)."""
    mask: Column = (values_ns >= _EARLIEST) & (values_ns < _LATEST)
    return mask


def are_spans(start_ns: Column, end_ns: Column) -> Column:
    """Return which records have usable times, so that end minus start is a duration.

    ``start_ns`` and ``end_ns``: uint64, shape (n,). The result is bool, shape (n,).
    """
    mask: Column = (start_ns >= _EARLIEST) & (end_ns >= start_ns) & (end_ns < _LATEST)
    return mask


@dataclass(frozen=True)
class Durations:
    """Columns of one kind, each of shape (n,).

    ``device_ids`` is any integer type, or None when all belong to the host.
    ``label_ids`` indexes ``labels``.
    """

    kind: ActivityKind
    device_ids: Column | None
    start_ns: Column
    end_ns: Column
    label_ids: Column
    labels: tuple[Label, ...]

    def __len__(self) -> int:
        return len(self.start_ns)


def durations_of(batch: Batch) -> Durations:
    """Return the durations of any kind but Marker and ExternalCorrelation."""
    kind, records = batch.kind, batch.records
    label_ids, labels = _labels(batch)
    devices = records["device_id"] if "device_id" in LAYOUTS[kind] else None
    return Durations(kind, devices, records["start_ns"], records["end_ns"], label_ids, labels)


def marker_durations(pairs: MarkerEvents) -> Durations:
    """Return the durations of paired markers. An instantaneous marker lasts 0 ns."""
    events = pairs.events
    combined = (events["name"].astype(np.uint64) << np.uint64(32)) | events["domain"]
    distinct, label_ids = np.unique(combined, return_inverse=True)
    texts = pairs.strings
    labels = tuple(
        (texts[number >> 32], texts[number & 0xFFFFFFFF], 0) for number in distinct.tolist()
    )
    host_only = not len(events) or bool((events["device_id"] == HOST_DEVICE_ID).all())
    return Durations(
        ActivityKind.Marker,
        None if host_only else events["device_id"],
        events["start_ns"],
        events["end_ns"],
        label_ids,
        labels,
    )


def _labels(batch: Batch) -> tuple[Column, tuple[Label, ...]]:
    """Return (label id of each record, labels). The layout says which field is the label."""
    layout, records = LAYOUTS[batch.kind], batch.records
    if batch.kind in COLLECTIVE_KINDS:
        label_ids, collectives = labels_of_collectives(batch)
        return label_ids, tuple(collectives)
    if not layout.label:
        return np.zeros(len(records), np.uint8), ((MEMSET_NAME, "", 0),)
    label = layout[layout.label]
    if label.is_text:
        return records[label.name], tuple((text, "", 0) for text in batch.strings)
    names = [label.names[number] for number in range(len(label.names))]
    labels = tuple((name, "", 0) for name in [*names, UNKNOWN_OPERATION])
    return np.minimum(records[label.name], len(names)), labels
