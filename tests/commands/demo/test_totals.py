"""The totals of each rank, merged from its windows."""

from __future__ import annotations

import numpy as np
from fixtures.sink_input import START_NS, make_batch

from msmon.commands.demo.totals import MergedWindows
from msmon.records.kinds import ActivityKind
from msmon.records.statistics.window_statistics import WindowStatistics
from msmon.records.windows import Window


def window(durations_ns: list[int], name: str = "MatMul") -> Window:
    rows = [
        {"name": name, "start_ns": START_NS, "end_ns": START_NS + length} for length in durations_ns
    ]
    statistics = WindowStatistics()
    statistics.add(make_batch(ActivityKind.Kernel, rows))
    return statistics.close(0, 0, 1)


def test_the_95th_percentile_is_that_of_all_windows_together() -> None:
    merged = MergedWindows()
    short, long = [1000] * 95, [9000] * 15
    merged.add(0, window(short))
    merged.add(0, window(long))
    merged.add(1, window([500]))
    (total,) = merged.totals()[0]
    assert (total.kind, total.name, total.count) == ("Kernel", "MatMul", 110)
    assert total.total_ns == sum(short) + sum(long)
    assert abs(total.p95_ns - np.quantile(short + long, 0.95)) <= 600
    assert merged.totals()[1][0].mean_ns == 500


def test_nothing_is_known_before_the_first_window() -> None:
    assert MergedWindows().totals() == {}
