"""What a run of a Monitor keeps, and what it counts."""

from __future__ import annotations

import numpy as np

from msmon.monitor_api.store import Store
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.filter import Filter
from msmon.records.kinds import ActivityKind

START_NS = 1_790_000_000_000_000_000


def test_records_whose_times_are_counters_are_kept_and_counted() -> None:
    records = np.zeros(4, DTYPES[ActivityKind.Kernel])
    records["kind"] = ActivityKind.Kernel
    records["start_ns"] = [START_NS, START_NS, 52_871_003, START_NS]
    records["end_ns"] = [START_NS + 5, 2**64 - 1, 52_871_959, START_NS - 1]
    batch = Batch(ActivityKind.Kernel, records, ("",))
    store = Store(frozenset({ActivityKind.Kernel}), Filter.parse(""), 10)
    for _ in range(2):
        table = store.prepare(batch)
        assert table is not None
        store.keep(batch.kind, table)
    assert sum(map(len, store.tables[ActivityKind.Kernel])) == 8
    assert store.untimed == {"Kernel": 6}
