"""Records that MSPTI delivers in a recording although they ended before it began.

A kind that is enabled again delivers what its driver still held of the recording before. Such
records are the first that come of a kind, and their end lies before the start of this recording.
Both must hold, because the end alone is a time on the wall clock, which somebody may set back: then
all that comes after would look early.
"""

from __future__ import annotations

import time

from msmon.records.batch import Batch
from msmon.records.durations import are_times
from msmon.records.kinds import ActivityKind
from msmon.records.layout import LAYOUTS

EARLY_RECORDS_S = 60.0
"""How long after a start early records may still arrive. Later they are not looked for."""

_SLEW_NS = 1_000_000
"""A smaller difference of the clocks is no step: NTP corrects so much by making seconds longer."""


class EarlyRecords:
    """Takes early records out of the batches of one recording, and counts them.

    A kind is settled with the first batch that brings a record of this recording; nothing that
    comes of it later is early. Before that, the monotonic clock tells how far the wall clock has
    been set back since the start, and only what ended so much before the start is early. Example:
    the clock is set back by an hour, and ten minutes worth of kernels follow. None of them ended
    more than an hour before the start, so all are kept.
    """

    def __init__(self) -> None:
        self.start_ns = time.time_ns()
        """Wall clock of the start."""
        self.count = 0
        self._start_s = time.monotonic()
        self._set_back_ns = 0
        self._settled: set[ActivityKind] = set()

    def taken_out_of(self, batch: Batch) -> Batch:
        """Return the batch without its early records."""
        end_field = LAYOUTS[batch.kind].end_field
        passed_s = time.monotonic() - self._start_s
        if not end_field or batch.kind in self._settled or passed_s > EARLY_RECORDS_S:
            return batch
        expected_ns = self.start_ns + int(passed_s * 1e9)
        set_back_ns = expected_ns - time.time_ns()
        if set_back_ns > _SLEW_NS:
            self._set_back_ns = max(self._set_back_ns, set_back_ns)
        end_ns = batch.records[end_field]
        has_time = are_times(end_ns)
        early = (end_ns < self.start_ns - self._set_back_ns) & has_time
        count = int(early.sum())
        if count < int(has_time.sum()):
            self._settled.add(batch.kind)
        self.count += count
        return batch.select(~early) if count else batch
