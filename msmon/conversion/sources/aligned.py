"""A source whose times are shown by the clock of another host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from msmon.conversion.sources.source import Source
from msmon.records.batch import Batch
from msmon.records.durations import are_times


class AlignedSource(Source):
    """The records of another source, ``later_ns`` later (negative: earlier).

    Numbers that are no times (:mod:`msmon.records.durations`) stay as they are.
    """

    def __init__(self, source: Source, later_ns: int) -> None:
        super().__init__(source.paths)
        self._source = source
        self._later_ns = later_ns
        self.stem = source.stem
        self._follow()

    def batches(self, advance: Callable[[int], None]) -> Iterator[Batch]:
        for batch in self._source.batches(advance):
            self._follow()
            yield self._moved(batch)
        self._follow()
        self.gaps = [
            dataclasses.replace(
                gap, start_ns=self._moved_ns(gap.start_ns), end_ns=self._moved_ns(gap.end_ns)
            )
            for gap in self._source.gaps
        ]

    def _follow(self) -> None:
        """Take over what the source knows by now."""
        source = self._source
        self.process, self.kinds = source.process, source.kinds
        self.skipped, self.problems = source.skipped, source.problems
        self.notes = source.notes
        self.start_ns, self.end_ns = map(self._moved_ns, (source.start_ns, source.end_ns))

    def _moved_ns(self, time_ns: int) -> int:
        return time_ns + self._later_ns if time_ns else 0

    def _moved(self, batch: Batch) -> Batch:
        records = batch.records.copy()
        for field in {"start_ns", "end_ns", "timestamp_ns"}.intersection(records.dtype.names or ()):
            times = records[field]
            moved = (times.astype(np.int64) + self._later_ns).astype(np.uint64)
            records[field] = np.where(are_times(times), moved, times)
        return Batch(batch.kind, records, batch.strings)
