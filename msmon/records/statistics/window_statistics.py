"""Statistics of one process: batches in, a window per report interval out.

Per (kind, device, name, domain) a window counts records and keeps the total, the
shortest and longest duration, and a histogram from which quantiles come. Windows
of other intervals or ranks can be merged without loss.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from msmon.records.batch import Batch, Column, join_columns
from msmon.records.durations import Durations, Label, are_spans, durations_of, marker_durations
from msmon.records.kinds import HOST_DEVICE_ID, ActivityKind
from msmon.records.markers import MarkerPairing
from msmon.records.merging import fitted
from msmon.records.statistics.operators import CHUNK_RECORDS, OperatorGroup
from msmon.records.windows import (
    BUCKET_DTYPE,
    MAX_WINDOW_BYTES,
    OPERATOR_DTYPE,
    OTHER_NAME,
    Window,
    bucket_rows,
    cut_name,
)

NAME_CAP = 1000
"""Operators per kind and window that are shown by name."""

TEXT_CAP = MAX_WINDOW_BYTES // 8
"""Characters that all names of a window may have together. UTF-8 takes up to four bytes for one,
so half of a window is left for the numbers."""

_COUNTED_OVERFLOW = 100_000
"""Names beyond the cap that are told apart to count them; ``overflow_names`` stops there."""

_DIGITS = re.compile(r"\d+")


class WindowStatistics:
    """Accumulates the current window. Belongs to one thread.

    Markers are paired first, so a range counts in the window in which its last record came. A
    mark lasts 0 ns. Markers whose names differ in numbers only are one operator: "step 41" and
    "step 42" both count for "step *". ExternalCorrelation records have no times and are only
    counted as received and kept.

    A window is never larger than a daemon takes. Names beyond ``name_cap`` per kind or
    ``TEXT_CAP`` characters count for ``other``, and long ones are cut; where that is not enough,
    the operators with the fewest records count for it as well.
    """

    def __init__(self, name_cap: int = NAME_CAP) -> None:
        self._name_cap = name_cap
        self._pairing = MarkerPairing()
        self.evicted_ranges = 0
        """Marker ranges given up before their end so far, because too many were open."""
        self._start_anew()

    @property
    def open_ranges(self) -> int:
        """Marker ranges that have begun and not ended."""
        return self._pairing.open_ranges

    @property
    def waiting_markers(self) -> Column:
        """The markers that wait for others of their id; see ``MarkerPairing.waiting``."""
        return self._pairing.waiting

    def _start_anew(self) -> None:
        self._groups: dict[tuple[ActivityKind, int], OperatorGroup] = {}
        self._admitted: dict[ActivityKind, set[Label]] = {}
        self._overflow: set[int] = set()
        """Hashes of the labels that found no room; the names themselves may be long."""
        self._text_room = TEXT_CAP
        self._received: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._untimed: Counter[str] = Counter()

    def add(self, batch: Batch, received: int | None = None) -> Durations | None:
        """Count a batch that passed the filter. Returns its durations; None where it has none.

        ``received`` is how many records there were before the filter (None: as many as passed).
        A record whose start and end make no duration (:mod:`msmon.records.durations`) is counted
        as untimed and enters no operator. The same goes for ranges and marks with such times, and
        for marker records that are part of none.
        """
        kind = batch.kind
        durations = None
        if len(batch) and kind != ActivityKind.ExternalCorrelation:
            durations = self._measure(batch)
        self._received[kind.name] += len(batch) if received is None else received
        self._kept[kind.name] += len(batch)
        return durations

    def _measure(self, batch: Batch) -> Durations:
        kind = batch.kind
        if kind == ActivityKind.Marker:
            pairs = self._pairing.add(batch)
            self.evicted_ranges += pairs.evicted_starts
            self._untimed[kind.name] += pairs.orphan_ends + pairs.evicted_starts
            durations = marker_durations(pairs)
        else:
            durations = durations_of(batch)
        self._add_durations(durations)
        return durations

    def close(self, index: int, start_ns: int, end_ns: int, step: int = -1) -> Window:
        """Return the window so far and start a new one; open marker ranges stay open."""
        window = self.so_far(index, start_ns, end_ns, step)
        self._start_anew()
        return window

    def so_far(self, index: int, start_ns: int, end_ns: int, step: int = -1) -> Window:
        """Return what the window holds until now; it stays open."""
        operators, buckets, names = self._columns()
        window = Window(
            index=index,
            start_ns=start_ns,
            end_ns=end_ns,
            operators=operators,
            buckets=buckets,
            names=names,
            step=step,
            received=dict(+self._received),
            kept=dict(+self._kept),
            untimed=dict(+self._untimed),
            overflow_names=len(self._overflow),
        )
        return fitted(window)

    def _add_durations(self, durations: Durations) -> None:
        kind = durations.kind

        def admit(label: Label) -> Label:
            return self._admit(kind, label)

        for device_id, values, label_ids in _timed_by_device(durations):
            group = self._groups.setdefault((kind, device_id), OperatorGroup())
            group.add(values, label_ids, durations.labels, admit)
            self._untimed[kind.name] -= len(values)
        self._untimed[kind.name] += len(durations)

    def _admit(self, kind: ActivityKind, label: Label) -> Label:
        name, domain = map(cut_name, label[:2])
        if kind == ActivityKind.Marker:
            name = _DIGITS.sub("*", name)
        label = (name, domain, label[2])
        admitted = self._admitted.setdefault(kind, set())
        if label in admitted:
            return label
        characters = len(name) + len(domain)
        if len(admitted) < self._name_cap and characters <= self._text_room:
            admitted.add(label)
            self._text_room -= characters
            return label
        if len(self._overflow) < _COUNTED_OVERFLOW:
            self._overflow.add(hash((kind, label)))
        return OTHER_NAME, "", 0

    def _columns(self) -> tuple[Column, Column, tuple[str, ...]]:
        text_ids: dict[str, int] = {"": 0}
        operators, buckets = [], []
        start = 0
        for (kind, device_id), group in sorted(self._groups.items()):
            labels = group.labels
            rows = np.zeros(len(labels), OPERATOR_DTYPE)
            rows["kind"] = kind
            rows["device_id"] = device_id
            rows["name"] = [text_ids.setdefault(label[0], len(text_ids)) for label in labels]
            rows["domain"] = [text_ids.setdefault(label[1], len(text_ids)) for label in labels]
            rows["size_class"] = [label[2] for label in labels]
            for field, column in zip(("count", "total_ns", "min_ns", "max_ns"), group.columns()):
                rows[field] = column
            operator, bucket, count = group.buckets()
            buckets.append(bucket_rows(operator + start, bucket, count))
            operators.append(rows)
            start += len(rows)
        return (
            join_columns([np.zeros(0, OPERATOR_DTYPE), *operators]),
            join_columns([np.zeros(0, BUCKET_DTYPE), *buckets]),
            tuple(text_ids),
        )


def _timed_by_device(durations: Durations) -> Iterator[tuple[int, Column, Column]]:
    """Yield (device, durations in ns, label ids) of the records that have usable times."""
    values = np.empty(len(durations), np.uint64)
    label_ids = np.empty(len(durations), np.int64)
    devices = durations.device_ids
    timed = np.empty(len(durations), np.bool_)
    for first in range(0, len(durations), CHUNK_RECORDS):
        chunk = slice(first, first + CHUNK_RECORDS)
        start_ns = np.ascontiguousarray(durations.start_ns[chunk])
        end_ns = np.ascontiguousarray(durations.end_ns[chunk])
        timed[chunk] = are_spans(start_ns, end_ns)
        np.subtract(end_ns, start_ns, out=values[chunk])
        label_ids[chunk] = durations.label_ids[chunk]
    if not timed.all():
        values, label_ids = values[timed], label_ids[timed]
        devices = None if devices is None else devices[timed]
    if not len(values):
        return
    if devices is None:
        yield HOST_DEVICE_ID, values, label_ids
    elif (devices == devices[0]).all():
        yield int(devices[0]), values, label_ids
    else:
        for device_id in np.unique(devices):
            mine = devices == device_id
            yield int(device_id), values[mine], label_ids[mine]
