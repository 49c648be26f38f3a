"""The records of one rank, reduced to what an analysis needs: when, how long, and of what.

Exports of a job may have tens of gigabytes, so the reduced records (20 bytes each) go to a
temporary file, and only their labels stay in memory. The file is open only while it is used: a job
may have more ranks than a process may have open files.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from msmon.conversion.sources.source import Source
from msmon.insight.job import Member
from msmon.records.batch import Batch, Column, printable
from msmon.records.collectives import labels_of_collectives
from msmon.records.durations import are_spans, durations_of
from msmon.records.kinds import ActivityKind
from msmon.records.layout import API_KINDS
from msmon.records.markers import MarkerEvents, MarkerPairing
from msmon.sessions import Gap
from msmon.sinks.sqlite.collectives import step_number

RECORD_DTYPE = np.dtype([("start_ns", "<i8"), ("end_ns", "<i8"), ("label", "<u4")])
CHUNK_RECORDS = 1 << 20
"""Records that are in memory at once."""

MAX_LABELS = 4096
"""Names of a rank that are told apart. The rest counts as ``OTHER`` and is not compared, since that
name stands for something else on each rank."""

MAX_STEPS = 2_000_000

OTHER = "other"


class Sort(enum.IntEnum):
    """What a record is to an analysis."""

    KERNEL = 0
    HOST_CALL = 1
    COMMUNICATION = 2


@dataclass(frozen=True)
class Label:
    """What a record is of: the name of a kernel or call, or the operation of a group.

    ``size_class`` is log2 of the bytes of a collective, 0 where that is unknown.
    """

    sort: Sort
    name: str
    group: str = ""
    size_class: int = 0


@dataclass
class RankRecords:
    """What was recorded of one rank. Written by :meth:`read`, on the thread that calls it."""

    rank: int
    path: Path
    """The temporary file; who makes the object removes it."""
    host: str = ""
    device: int = -1
    labels: list[Label] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """Records of each label."""
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    """(number, start ns, end ns) of each step marker."""
    gaps: list[Gap] = field(default_factory=list)
    untimed: int = 0
    """Records without usable times, left out."""
    skipped: int = 0
    """Damaged parts of the exports."""
    first_ns: int = 0
    last_ns: int = 0

    def __post_init__(self) -> None:
        self._ids: dict[Label, int] = {}
        self._device_steps: list[tuple[int, int, int]] = []

    @property
    def member(self) -> Member:
        """Who this is in a verdict."""
        return Member(self.rank, self.host, self.device)

    def read(self, source: Source, advance: Callable[[int], None]) -> None:
        """Take all records of a source. Raises OSError, also when the temporary file can't grow."""
        self.host = self.host or source.process.host
        pairing = MarkerPairing()
        with self.path.open("ab") as file:
            for batch in source.batches(advance):
                if batch.kind == ActivityKind.Marker:
                    self._take_steps(pairing.add(batch))
                elif batch.kind == ActivityKind.Kernel:
                    rows = self._timed(batch, self._named(batch, Sort.KERNEL))
                    file.write(rows.tobytes())
                    if self.device < 0 and len(rows):
                        self.device = int(batch.records["device_id"][0])
                elif batch.kind in API_KINDS:
                    named = self._named(batch, Sort.HOST_CALL)
                    file.write(self._timed(batch, named).tobytes())
                elif batch.kind == ActivityKind.Communication:
                    file.write(self._timed(batch, self._collectives(batch)).tobytes())
        self.gaps += source.gaps
        self.skipped += source.skipped

    def finish(self) -> None:
        """Call after the last source: the device's step markers count where there are any."""
        if self._device_steps:
            self.steps = self._device_steps
        self.steps = sorted(set(self.steps), key=lambda step: step[1])

    def chunks(self) -> Iterator[Column]:
        """Yield the records, dtype ``RECORD_DTYPE``, at most ``CHUNK_RECORDS`` at once."""
        with self.path.open("rb") as file:
            while data := file.read(CHUNK_RECORDS * RECORD_DTYPE.itemsize):
                yield np.frombuffer(data, RECORD_DTYPE)

    def left_out(self) -> list[str]:
        """Return sentences on what is not judged."""
        told = []
        if not self.last_ns:
            told.append(f"rank {self.rank}: no records of kernels, calls or communication")
        if self.skipped:
            told.append(f"rank {self.rank}: {self.skipped:,} damaged parts were skipped")
        if self.untimed:
            told.append(
                f"rank {self.rank}: {self.untimed:,} records were left out, as their times are no "
                "times of a clock"
            )
        if len(self._ids) >= MAX_LABELS:
            told.append(
                f"rank {self.rank}: more than {MAX_LABELS:,} names; those that came later are not "
                "compared"
            )
        if max(len(self.steps), len(self._device_steps)) >= MAX_STEPS:
            told.append(f"rank {self.rank}: only the first {MAX_STEPS:,} step markers were read")
        return told

    def _timed(self, batch: Batch, labels: Column) -> Column:
        """Return the records with usable times, dtype ``RECORD_DTYPE``, and count all."""
        records = batch.records
        timed = are_spans(records["start_ns"], records["end_ns"])
        self.untimed += int(len(timed) - timed.sum())
        rows = np.zeros(int(timed.sum()), RECORD_DTYPE)
        rows["start_ns"], rows["end_ns"] = records["start_ns"][timed], records["end_ns"][timed]
        rows["label"] = labels[timed]
        if not len(rows):
            return rows
        for label, count in enumerate(np.bincount(rows["label"]).tolist()):
            self.counts[label] += count
        first, last = int(rows["start_ns"].min()), int(rows["end_ns"].max())
        self.first_ns = min(self.first_ns or first, first)
        self.last_ns = max(self.last_ns, last)
        return rows

    def _take_steps(self, completed: MarkerEvents) -> None:
        events = completed.events
        numbers = np.array([step_number(text) for text in completed.strings], np.int64)
        is_step = (numbers[events["name"]] >= 0) & (events["instantaneous"] == 0)
        rows = events[is_step & are_spans(events["start_ns"], events["end_ns"])]
        on_host = rows["device_id"] < 0
        for steps, mine in ((self.steps, rows[on_host]), (self._device_steps, rows[~on_host])):
            columns = (numbers[mine["name"]], mine["start_ns"], mine["end_ns"])
            found = list(zip(*(column.tolist() for column in columns)))
            steps += found[: MAX_STEPS - len(steps)]

    def _named(self, batch: Batch, sort: Sort) -> Column:
        """Return the label of each record, by its name."""
        durations = durations_of(batch)
        used = np.unique(durations.label_ids)
        table = np.zeros(int(used.max()) + 1 if len(used) else 1, np.int64)
        table[used] = [self._id(Label(sort, printable(durations.labels[i][0]))) for i in used]
        labels: Column = table[durations.label_ids]
        return labels

    def _collectives(self, batch: Batch) -> Column:
        """Return the label of each collective, by operation, group and size."""
        ids, found = labels_of_collectives(batch)
        table = [
            self._id(Label(Sort.COMMUNICATION, printable(operation), printable(group), size_class))
            for operation, group, size_class in found
        ]
        labels: Column = np.array(table, np.int64)[ids]
        return labels

    def _id(self, label: Label) -> int:
        number = self._ids.get(label)
        if number is None:
            if len(self._ids) >= MAX_LABELS and label.name != OTHER:
                return self._id(Label(label.sort, OTHER))
            number = self._ids[label] = len(self._ids)
            self.labels.append(label)
            self.counts.append(0)
        return number
