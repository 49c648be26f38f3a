"""The totals of each rank: what the sink merges is what the reader gets."""

from __future__ import annotations

import numpy as np
import pytest
from fixtures.sink_input import START_NS, make_batch, make_session

from msmon.commands.demo.totals import OperatorTotal, TotalsSink, read_totals
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


@pytest.fixture
def sink(tmp_path):
    opened = TotalsSink(path=str(tmp_path / "totals.json"))
    for rank in (0, 1):
        opened.open_session(make_session(tmp_path, rank, f"s{rank}"))
    return opened


def test_the_percentile_is_that_of_all_records_and_not_the_mean_of_the_windows(sink, tmp_path):
    sink.write_window("s0", 1, window([1_000] * 90))
    sink.write_window("s0", 2, window([9_000] * 10))
    sink.commit()
    (total,) = read_totals(tmp_path / "totals.json")[0]
    assert (total.count, total.total_ns, total.mean_ns) == (100, 180_000, 1_800)
    exact = np.quantile([1_000] * 90 + [9_000] * 10, 0.95)
    assert total.p95_ns == pytest.approx(exact, rel=0.063)


def test_ranks_and_names_stay_apart(sink, tmp_path):
    sink.write_window("s0", 1, window([100]))
    sink.write_window("s0", 2, window([200], "Add"))
    sink.write_window("s1", 1, window([400]))
    sink.commit()
    totals = read_totals(tmp_path / "totals.json")
    found = {rank: sorted(total.name for total in totals[rank]) for rank in totals}
    assert found == {0: ["Add", "MatMul"], 1: ["MatMul"]}
    assert totals[1] == [OperatorTotal("Kernel", "MatMul", 1, 400, 400.0)]


def test_what_was_written_stays_when_the_session_ends_and_is_empty_before(sink, tmp_path):
    assert read_totals(tmp_path / "totals.json") == {}
    sink.write_window("s0", 1, window([100]))
    sink.close_session("s0", 2, None)
    sink.commit()
    assert [total.count for total in read_totals(tmp_path / "totals.json")[0]] == [1]
