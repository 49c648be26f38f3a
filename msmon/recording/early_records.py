"""Records that MSPTI delivers in a recording although they ended before it began.

A kind that is enabled again delivers what its driver still held of the recording before. Such a
record is known by its end: it lies before the start of this recording. The wall clock is asked
for a limited time only; see :data:`EARLY_RECORDS_S`.
"""

from __future__ import annotations

import time

from msmon.records.batch import Batch
from msmon.records.durations import are_times
from msmon.records.layout import LAYOUTS

EARLY_RECORDS_S = 60.0
"""How long after a start early records may still arrive. Later they are not looked for: were the
clock set back in the middle of a recording, all that comes after would look early."""


class EarlyRecords:
    """Takes early records out of the batches of one recording, and counts them."""

    def __init__(self) -> None:
        self.start_ns = time.time_ns()
        """Wall clock of the start."""
        self.count = 0
        self._until_s = time.monotonic() + EARLY_RECORDS_S

    def taken_out_of(self, batch: Batch) -> Batch:
        """Return the batch without its early records."""
        end_field = LAYOUTS[batch.kind].end_field
        if not end_field or time.monotonic() > self._until_s:
            return batch
        end_ns = batch.records[end_field]
        early = (end_ns < self.start_ns) & are_times(end_ns)
        count = int(early.sum())
        self.count += count
        return batch.select(~early) if count else batch
