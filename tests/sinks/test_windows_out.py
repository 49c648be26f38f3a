"""Windows as JSON lines and as log lines."""

from __future__ import annotations

import dataclasses
import json
import logging
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msmon.errors import SinkError
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.records.statistics.window_statistics import WindowStatistics
from msmon.records.windows import DEVICE_DTYPE, DIGEST_DTYPE, OPERATOR_DTYPE, Window
from msmon.sessions import Gap, SessionEnd
from msmon.sinks import metrics_json
from msmon.sinks.log import LogSink
from msmon.sinks.metrics_json import MetricsJsonSink

KEYS = [
    "session", "host", "pid", "rank", "window", "start_ns", "end_ns", "step", "kind", "device",
    "name", "domain", "count", "total_ns", "min_ns", "max_ns", "size_class", "mean_ns", "p50_ns",
    "p95_ns", "p99_ns",
]  # fmt: skip


@pytest.fixture
def window(kernels: Callable[..., Batch]) -> Window:
    statistics = WindowStatistics()
    statistics.add(kernels(1000, name_count=2))
    return statistics.close(4, 100, 1_000_000_100, 17)


def test_one_line_per_operator_with_its_statistics(
    window: Window, session: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "metrics.json"
    sink = MetricsJsonSink(path=str(path))
    sink.open_session(session(tmp_path, rank=3))
    sink.write_window("session-3", 2, window)
    sink.write_gap("session-3", 3, Gap("slots", 1, 2, {"Kernel": 5}))
    sink.commit()
    sink.close()
    *rows, gap = map(json.loads, path.read_text().splitlines())
    assert {row["name"] for row in rows} == {"MatMul_0", "MatMul_1"}
    assert sum(row["count"] for row in rows) == 1000
    first = rows[0]
    assert list(first) == KEYS
    assert (first["rank"], first["pid"], first["host"]) == (3, 4003, "host-a")
    assert (first["kind"], first["device"], first["step"]) == ("Kernel", 0, 17)
    assert first["mean_ns"] == first["total_ns"] / first["count"]
    assert first["min_ns"] <= first["p50_ns"] <= first["p95_ns"] <= first["p99_ns"]
    assert (gap["kind"], gap["records"]) == ("gap", {"Kernel": 5})


def test_a_torn_last_line_is_ended_before_the_next(
    window: Window, session: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "metrics.json"
    path.write_text('{"torn":')
    sink = MetricsJsonSink(path=str(path))
    sink.open_session(session(tmp_path))
    sink.write_window("session-0", 2, window)
    sink.commit()
    sink.close()
    torn, *rows = path.read_text().splitlines()
    assert torn == '{"torn":'
    assert [json.loads(row)["window"] for row in rows] == [4, 4]


def wide_window(rows: int) -> Window:
    operators = np.zeros(rows, OPERATOR_DTYPE)
    operators["kind"], operators["count"], operators["name"] = ActivityKind.Kernel, 2, 1
    return Window(4, 100, 200, operators=operators, names=("", "n" * 4096))


def test_the_lines_of_a_window_have_a_bound_and_what_is_beyond_is_counted(
    session: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_json, "MAX_WINDOW_BYTES", 100_000)
    path = tmp_path / "metrics.json"
    sink = MetricsJsonSink(path=str(path))
    sink.open_session(session(tmp_path))
    sink.write_window("session-0", 2, wide_window(400))
    sink.commit()
    sink.close()
    *rows, gap = map(json.loads, path.read_text().splitlines())
    assert path.stat().st_size < 101_000
    assert (gap["stage"], gap["records"]) == ("sink", {"Kernel": 2 * (400 - len(rows))})


def test_what_waits_has_a_bound_and_a_full_disk_is_told_by_the_commit(
    session: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_json, "MAX_HELD_BYTES", 100_000)
    path = tmp_path / "metrics.json"
    sink = MetricsJsonSink(path=str(path))
    sink.open_session(session(tmp_path))
    sink.write_window("session-0", 2, wide_window(100))
    assert path.stat().st_size > 300_000
    sink.commit()
    sink.close()
    assert len(path.read_text().splitlines()) == 100
    with open("/dev/full", "w") as device:
        monkeypatch.setattr(sys, "stdout", device)
        full = MetricsJsonSink(path="-")
        full.open_session(session(tmp_path))
        full.write_window("session-0", 2, wide_window(100))
        with pytest.raises(OSError, match="No space"):
            full.commit()


def test_a_file_that_can_not_be_opened(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="can't write"):
        MetricsJsonSink(path=str(tmp_path))


def test_the_log_shows_the_top_operators(
    window: Window,
    session: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    sink = LogSink(top=1)
    sink.open_session(session(tmp_path))
    sink.write_window("session-0", 2, window)
    sink.write_gap("session-0", 3, Gap("slots", 1, 2, None, "no free buffer"))
    sink.close_session("session-0", 4, SessionEnd(9, "stop"))
    opened, summary, operator, gap, closed = caplog.messages
    assert "rank 0" in opened
    assert "window 4 (1.000 s)" in summary
    assert "Kernel 'MatMul_" in operator
    assert "unknown no free buffer" in gap
    assert "closed: stop" in closed


@pytest.fixture
def detailed(window: Window) -> Window:
    """A window with steps, a device and a collective that began before it."""
    devices, collectives = np.zeros(1, DEVICE_DTYPE), np.zeros(1, DIGEST_DTYPE)
    devices[0] = (3, 1000, 600, 150, 250)
    for name, value in {"group": 1, "operation": 2, "size_class": 22, "number": 9}.items():
        collectives[name] = value
    collectives["start_us"], collectives["lasted_ns"] = -5, 1500
    steps = {"steps": 4, "step_total_ns": 2_000_000, "step_min_ns": 400_000}
    return dataclasses.replace(
        window,
        **steps,
        step_max_ns=700_000,
        digest_step=16,
        devices=devices,
        collectives=collectives,
        start_ns=1_000_000,
    )


def test_steps_devices_and_collectives_have_lines_of_their_own(
    detailed: Window, session: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.json"
    sink = MetricsJsonSink(path=str(path))
    sink.open_session(session(tmp_path, rank=3))
    sink.write_window("session-3", 2, detailed)
    monkeypatch.setattr(metrics_json, "MAX_COLLECTIVES_BYTES", 100)
    sink.write_window("session-3", 3, detailed)
    sink.commit()
    sink.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["kind"] for row in rows] == [
        *("steps", "device", "collectives", "Kernel", "Kernel"),
        *("steps", "device", "Kernel", "Kernel"),  # too long a line is left out
    ]
    steps, device, collectives = ({**row} for row in rows[:3])
    common = {key: steps.pop(key) for key in KEYS[: KEYS.index("kind")]}
    assert common["rank"] == 3
    assert steps == {
        "kind": "steps",
        "count": 4,
        "total_ns": 2_000_000,
        "min_ns": 400_000,
        "max_ns": 700_000,
    }
    assert device == {
        **common,
        "kind": "device",
        "device": 3,
        "measured_ns": 1000,
        "busy_ns": 600,
        "exposed_ns": 150,
        "idle_ns": 250,
    }
    assert collectives == {
        **common,
        "kind": "collectives",
        "digest_step": 16,
        "collectives": [
            {
                "domain": detailed.names[1],
                "name": detailed.names[2],
                "size_class": 22,
                "number": 9,
                "start_ns": 995_000,
                "lasted_ns": 1500,
            }
        ],
    }


def test_the_log_shows_steps_and_how_devices_spent_the_time(
    detailed: Window,
    session: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    sink = LogSink(top=0)
    sink.open_session(session(tmp_path))
    sink.write_window("session-0", 2, detailed)
    *_, steps, device = caplog.messages
    assert steps.endswith("4 steps, mean 0.500 ms")
    assert device.endswith("device 3: busy 60%, exposed communication 15%, idle 25%")


def test_after_a_full_disk_the_file_goes_on_behind_what_was_committed(
    window: Window, session: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "metrics.json"
    sink = MetricsJsonSink(path=str(path))
    sink.open_session(session(tmp_path))
    sink.write_window("session-0", 2, window)
    sink.commit()
    committed = path.read_bytes()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(committed) + 100, hard))
    try:
        sink.write_window("session-0", 3, window)
        with pytest.raises(OSError, match="too large"):
            sink.commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert path.read_bytes() == committed
    sink.write_window("session-0", 3, window)  # it is given again
    sink.commit()
    sink.close()
    assert path.read_bytes() == committed + committed


def test_a_file_that_others_write_too_is_not_cut(
    window: Window, session: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "metrics.json"
    sink = MetricsJsonSink(path=str(path))
    sink.open_session(session(tmp_path))
    with path.open("a") as other:
        other.write('{"of": "another"}\n')
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        sink.write_window("session-0", 2, window)
        with pytest.raises(OSError, match="too large"):
            sink.commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    sink.write_window("session-0", 2, window)
    sink.commit()
    sink.close()
    other_line, torn, *rows = path.read_text().splitlines()
    assert json.loads(other_line) == {"of": "another"}
    assert not torn.endswith("}")
    assert [json.loads(row)["window"] for row in rows] == [4, 4]
