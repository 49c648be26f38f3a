"""Window statistics against plain Python dictionaries."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msmon.records.batch import Batch
from msmon.records.collectives import COLLECTIVE_KINDS, group_in, operation_of
from msmon.records.dtypes import DTYPES
from msmon.records.durations import EARLIEST_NS, LATEST_NS
from msmon.records.kinds import ActivityKind, MarkerFlag, MemcpyKind
from msmon.records.layout import API_KINDS
from msmon.records.markers import LATE_BATCHES
from msmon.records.merging import fitted, merge
from msmon.records.statistics.window_statistics import WindowStatistics
from msmon.records.window_frames import frames_of, window_of
from msmon.records.windows import (
    MAX_WINDOW_BYTES,
    Window,
    bucket_of,
    operator_rows,
    quantile_ns,
)

MAX_U64 = 2**64 - 1
START_NS = 1_790_000_000_000_000_000
TIMED_KINDS = sorted(set(ActivityKind) - {ActivityKind.Marker, ActivityKind.ExternalCorrelation})
NAMED_KINDS = [kind for kind in TIMED_KINDS if "name" in (DTYPES[kind].names or ())]

Record = tuple[int, str, int, int]
"""(device, name, start, end)."""


def batch_of(kind: ActivityKind, rows: list[Record]) -> Batch:
    strings = ("", "unused", *sorted({name for _, name, _, _ in rows if name}))
    records = np.zeros(len(rows), DTYPES[kind])
    records["kind"] = kind
    records["start_ns"] = [start for _, _, start, _ in rows]
    records["end_ns"] = [end for _, _, _, end in rows]
    if kind in NAMED_KINDS:
        records["name"] = [strings.index(name) for _, name, _, _ in rows]
    if kind not in API_KINDS:
        records["device_id"] = [device for device, _, _, _ in rows]
    return Batch(kind, records, strings)


def kernels(name: str, durations_ns: list[int]) -> Batch:
    return batch_of(
        ActivityKind.Kernel, [(0, name, START_NS, START_NS + value) for value in durations_ns]
    )


def close(statistics: WindowStatistics) -> Window:
    return statistics.close(0, 0, 1)


def operators(window: Window) -> dict[tuple[Any, ...], tuple[int, ...]]:
    return {
        (row.kind, row.device_id, row.name, row.domain): (
            row.count,
            row.total_ns,
            row.min_ns,
            row.max_ns,
        )
        for row in operator_rows(window)
    }


def histograms(window: Window) -> dict[tuple[Any, ...], dict[int, int]]:
    keys = list(operators(window))
    cells: dict[tuple[Any, ...], dict[int, int]] = {}
    for operator, bucket, count in window.buckets.tolist():
        cells.setdefault(keys[operator], {})[bucket] = count
    return cells


def expected_operators(
    rows: list[tuple[ActivityKind, Record]],
) -> dict[tuple[Any, ...], list[int]]:
    durations: dict[tuple[Any, ...], list[int]] = {}
    for kind, (device, name, start_ns, end_ns) in rows:
        if EARLIEST_NS <= start_ns <= end_ns < LATEST_NS:
            domain = ""
            if kind in COLLECTIVE_KINDS:
                name, domain = operation_of(name), group_in(name)
            key = (kind, -1 if kind in API_KINDS else device, name, domain)
            durations.setdefault(key, []).append(end_ns - start_ns)
    return durations


times = st.sampled_from(
    [
        *(0, 1000, 2**53, EARLIEST_NS - 1, EARLIEST_NS, EARLIEST_NS + 1500),
        *(START_NS, START_NS + 2, LATEST_NS - 1, LATEST_NS, 2**63, MAX_U64),
    ]
)
names = st.sampled_from(
    ["", "MatMul", "Softmax", "算子", "\udcff", "other", "hcom_send__7_3_1", "hcom_send__7_4_1"]
)
record = st.tuples(st.sampled_from([0, 3, 2**32 - 1]), names, times, times)
batches = st.lists(
    st.tuples(st.sampled_from(NAMED_KINDS), st.lists(record, max_size=20)), max_size=6
)


@given(described=batches, split=st.integers(0, 6))
def test_windows_and_their_merge_agree_with_plain_python(
    described: list[tuple[ActivityKind, list[Record]]], split: int
) -> None:
    statistics = WindowStatistics()
    windows = []
    for part in (described[:split], described[split:]):
        for kind, rows in part:
            statistics.add(batch_of(kind, rows))
        windows.append(close(statistics))
    durations = expected_operators([(kind, row) for kind, rows in described for row in rows])
    merged = merge(windows)
    assert operators(merged) == {
        key: (len(values), min(sum(values), MAX_U64), min(values), max(values))
        for key, values in durations.items()
    }
    assert histograms(merged) == {
        key: Counter(bucket_of(np.array(values, np.uint64)).tolist())
        for key, values in durations.items()
    }
    timed = Counter(key[0].name for key, values in durations.items() for _ in values)
    total = Counter(kind.name for kind, rows in described for _ in rows)
    assert merged.received == merged.kept == dict(total)
    assert merged.untimed == dict(total - timed)


def test_many_records_are_summed_exactly() -> None:
    rng = np.random.default_rng(3)
    durations = rng.integers(0, 2**47, 60_000, dtype=np.uint64)
    statistics = WindowStatistics()
    for part in np.array_split(durations, 3):
        statistics.add(kernels("MatMul", part.tolist()))
    (row,) = operator_rows(close(statistics))
    assert row.total_ns == sum(durations.tolist())
    assert (row.min_ns, row.max_ns) == (durations.min(), durations.max())
    assert (row.count, row.mean_ns) == (60_000, row.total_ns / 60_000)


def test_a_closed_window_starts_anew() -> None:
    statistics = WindowStatistics()
    statistics.add(kernels("MatMul", [5]), received=3)
    first = statistics.close(4, 10, 20, step=7)
    assert (first.index, first.start_ns, first.end_ns, first.step) == (4, 10, 20, 7)
    assert (first.received, first.kept) == ({"Kernel": 3}, {"Kernel": 1})
    second = close(statistics)
    assert (len(second.operators), len(second.buckets), second.names) == (0, 0, ("",))
    assert second.received == second.kept == second.untimed == {}


def test_kinds_without_names_use_operation_and_direction() -> None:
    statistics = WindowStatistics()
    timed = [(2, "", START_NS, START_NS + 5)] * 3
    memory, memset, memcpy = (
        batch_of(kind, timed)
        for kind in (ActivityKind.Memory, ActivityKind.MemSet, ActivityKind.MemCpy)
    )
    memory.records["operation"] = [0, 1, 99]
    memcpy.records["copy_kind"] = [MemcpyKind.HTOD, MemcpyKind.HTOD, 2**32 - 1]
    for batch in (memory, memset, memcpy):
        statistics.add(batch)
    counts = {
        (kind, name): row[0] for (kind, _, name, _), row in operators(close(statistics)).items()
    }
    assert counts == {
        (ActivityKind.Memory, "ALLOCATION"): 1,
        (ActivityKind.Memory, "RELEASE"): 1,
        (ActivityKind.Memory, "UNKNOWN_OPERATION"): 1,
        (ActivityKind.MemSet, "memset"): 3,
        (ActivityKind.MemCpy, "HTOD"): 2,
        (ActivityKind.MemCpy, "UNKNOWN_OPERATION"): 1,
    }


def test_external_correlation_is_only_counted() -> None:
    kind = ActivityKind.ExternalCorrelation
    statistics = WindowStatistics()
    statistics.add(Batch(kind, np.zeros(4, DTYPES[kind]), ("",)))
    window = close(statistics)
    assert window.kept == {"ExternalCorrelation": 4}
    assert len(window.operators) == 0


def markers(rows: list[tuple[int, MarkerFlag, int, str]]) -> Batch:
    strings = ("", "domain", *dict.fromkeys(name for *_, name in rows if name))
    records = np.zeros(len(rows), DTYPES[ActivityKind.Marker])
    records["kind"] = ActivityKind.Marker
    for place, (number, flag, time_ns, name) in enumerate(rows):
        records["id"][place] = number
        records["flag"][place] = flag
        records["timestamp_ns"][place] = START_NS + time_ns
        records["name"][place] = strings.index(name)
        records["domain"][place] = 1 if name else 0
    return Batch(ActivityKind.Marker, records, strings)


def test_marker_names_that_differ_in_numbers_are_one_and_ranges_span_windows() -> None:
    statistics = WindowStatistics()
    rows = []
    for step in range(1, 2001):
        rows.append((step, MarkerFlag.START, step * 100, f"step {step}"))
        rows.append((step, MarkerFlag.END, step * 100 + step, ""))
    statistics.add(markers(rows[:-1]))
    key = (ActivityKind.Marker, -1, "step *", "domain")
    assert operators(close(statistics)) == {key: (1999, sum(range(2000)), 1, 1999)}
    statistics.add(markers(rows[-1:]))
    assert operators(close(statistics)) == {key: (1, 2000, 2000, 2000)}


def test_no_mean_is_made_of_counters_and_of_ends_that_never_came() -> None:
    statistics = WindowStatistics()
    counter = 52_871_003
    timed = [(0, "MatMul", START_NS, START_NS + 700)] * 997
    others = [
        (0, "MatMul", START_NS, MAX_U64),
        (0, "MatMul", counter, counter + 900),
        (0, "MatMul", counter, START_NS),
    ]
    statistics.add(batch_of(ActivityKind.Kernel, [*timed, *others]))
    window = close(statistics)
    (row,) = operator_rows(window)
    assert (row.count, row.mean_ns, row.max_ns) == (997, 700, 700)
    assert window.untimed == {"Kernel": 3}


def test_a_mark_lasts_no_time() -> None:
    statistics = WindowStatistics()
    statistics.add(markers([(1, MarkerFlag.INSTANTANEOUS, 50, "epoch")]))
    assert operators(close(statistics)) == {
        (ActivityKind.Marker, -1, "epoch", "domain"): (1, 0, 0, 0)
    }


def test_markers_without_a_counterpart_are_untimed() -> None:
    statistics = WindowStatistics()
    for number in range(LATE_BATCHES + 1):
        statistics.add(markers([(number + 1, MarkerFlag.END, 50, "")]))
    assert close(statistics).untimed == {"Marker": 1}


@pytest.mark.parametrize("distinct", [8, 3000])
def test_names_beyond_the_cap_are_summed_under_other_and_counted(distinct: int) -> None:
    statistics = WindowStatistics(name_cap=5)
    rows = [(number % 2, f"kernel {number}", START_NS, START_NS + 10) for number in range(distinct)]
    statistics.add(batch_of(ActivityKind.Kernel, rows))
    statistics.add(batch_of(ActivityKind.Kernel, rows))
    statistics.add(batch_of(ActivityKind.API, [(0, "an API", START_NS, START_NS + 2)]))
    window = close(statistics)
    assert window.overflow_names == distinct - 5
    rows_by_name = Counter(row.name for row in operator_rows(window))
    assert len(rows_by_name) == 5 + 2
    assert rows_by_name["an API"] == 1
    other = [row for row in operator_rows(window) if row.name == "other"]
    assert sum(row.count for row in other) == 2 * (distinct - 5)
    assert sum(row.total_ns for row in operator_rows(window)) == 2 * distinct * 10 + 2


def test_a_window_of_the_longest_names_is_no_larger_than_a_daemon_takes() -> None:
    statistics = WindowStatistics()
    for kind in NAMED_KINDS:
        rows = [(0, f"{number} {'算' * 5000}", START_NS, START_NS + 10) for number in range(1200)]
        statistics.add(batch_of(kind, rows))
    window = close(statistics)
    frames = frames_of(window)
    assert sum(map(len, frames)) <= MAX_WINDOW_BYTES
    window_of(window, frames)
    assert sum(row.count for row in operator_rows(window)) == 1200 * len(NAMED_KINDS)
    assert sum(row.total_ns for row in operator_rows(window)) == 12_000 * len(NAMED_KINDS)
    assert window.overflow_names > 0


def test_where_a_window_is_too_large_the_rarest_operators_become_one() -> None:
    statistics = WindowStatistics()
    for number in range(1, 9):
        statistics.add(kernels(f"kernel {number}", [number] * number))
    whole = close(statistics)
    fitting = fitted(whole, most_bytes=MAX_WINDOW_BYTES, most_rows=5)
    assert {row.name: row.count for row in operator_rows(fitting)} == {
        **{f"kernel {number}": number for number in range(5, 9)},
        "other": 1 + 2 + 3 + 4,
    }
    (other,) = [row for row in operator_rows(fitting) if row.name == "other"]
    assert (other.total_ns, other.min_ns, other.max_ns) == (1 + 4 + 9 + 16, 1, 4)
    assert quantile_ns(fitting, other.index, 1) == 4
    assert fitting.overflow_names == 4
    assert fitted(whole) is whole
    assert len(fitted(whole, most_bytes=1).operators) == 1


def test_a_window_can_be_looked_at_while_it_is_open() -> None:
    statistics = WindowStatistics()
    statistics.add(kernels("MatMul", [4]))
    assert operators(statistics.so_far(0, 0, 1)) == {
        (ActivityKind.Kernel, 0, "MatMul", ""): (1, 4, 4, 4)
    }
    statistics.add(kernels("MatMul", [6]))
    window = close(statistics)
    assert operators(window) == {(ActivityKind.Kernel, 0, "MatMul", ""): (2, 10, 4, 6)}
    assert window.kept == {"Kernel": 2}


@given(
    st.lists(st.one_of(st.integers(0, 50), st.integers(0, 2**40)), min_size=1, max_size=200),
    st.floats(0, 1),
)
def test_quantiles_are_within_the_stated_error(durations_ns: list[int], q: float) -> None:
    statistics = WindowStatistics()
    statistics.add(kernels("MatMul", durations_ns))
    exact = sorted(durations_ns)[max(0, math.ceil(q * len(durations_ns)) - 1)]
    assert quantile_ns(close(statistics), 0, q) == pytest.approx(exact, rel=0.0626)


def test_extreme_quantiles_are_minimum_and_maximum() -> None:
    statistics = WindowStatistics()
    statistics.add(kernels("a", [3, 1000, 77]))
    statistics.add(kernels("b", [9]))
    window = close(statistics)
    assert [quantile_ns(window, 0, q) for q in (0, 1)] == [3, 1000]
    assert quantile_ns(window, 1, 0.5) == 9


def test_merge_spans_intervals_and_keeps_ranks_apart_from_names() -> None:
    statistics = WindowStatistics()
    statistics.add(kernels("b", [1]))
    first = statistics.close(3, 100, 200, step=5)
    statistics.add(kernels("a", [2]))
    statistics.add(kernels("b", [7]))
    second = statistics.close(4, 200, 300)
    merged = merge([first, second])
    assert (merged.index, merged.start_ns, merged.end_ns, merged.step) == (4, 100, 300, 5)
    assert operators(merged) == {
        (ActivityKind.Kernel, 0, "a", ""): (1, 2, 2, 2),
        (ActivityKind.Kernel, 0, "b", ""): (2, 8, 1, 7),
    }
    assert operators(merge([merged])) == operators(merged)


def test_a_window_of_wire_frames_can_be_merged() -> None:
    statistics = WindowStatistics()
    statistics.add(kernels("MatMul", [4, 5]))
    window = close(statistics)
    received = window_of(window, frames_of(window))
    assert operators(merge([received, window])) == {
        (ActivityKind.Kernel, 0, "MatMul", ""): (4, 18, 4, 5)
    }
