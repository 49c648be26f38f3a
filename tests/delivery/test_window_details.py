"""What a window tells beside durations, from the simulated library to the daemon's outputs."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from job import DEADLINE_S, Job, wait_for

from msmon.bus.client import Client
from msmon.bus.endpoints import local_endpoint
from msmon.bus.recent_windows import RecentReader, SeenWindow

STEP_S = 0.1
"""A step of the loop lasts as long as two of the simulation."""

TRAIN = f"""
import signal, time
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
import msmon
msmon.init()
begin_s, steps = time.perf_counter(), 0
while not ended:
    steps += 1
    time.sleep(max(0.0, begin_s + steps * {STEP_S} - time.perf_counter()))
    msmon.step()
msmon.shutdown()
"""

SIZES = {
    ("allReduce", "tensor_parallel_group"): 23,  # 4 Mi elements of 2 bytes
    ("reduceScatter", "data_parallel_group"): 25,
    ("allGather", "data_parallel_group"): 24,
}
WINDOW_S = 0.6


@pytest.fixture
def job() -> Iterator[Job]:
    directory = Path(tempfile.mkdtemp(prefix="msmon-")).resolve()
    with Job(directory, 2, "step_ms=50,rate=8000") as started:
        metrics = f"metrics-json:path={directory}/metrics.json"
        started.daemon_options = ("--heartbeat-s", "0.2", "--sink", metrics)
        started.start_daemon()
        for rank in range(2):
            started.start_rank(rank, TRAIN)
        started.await_states("idle")
        yield started
    shutil.rmtree(directory, ignore_errors=True)


def lines(job: Job) -> list[dict[str, Any]]:
    text = (job.directory / "metrics.json").read_text()
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def recent(job: Job) -> list[SeenWindow]:
    environ = {"MSMON_RUNTIME_DIR": str(job.directory / "run")}
    with Client(local_endpoint(environ)) as client:
        pages = list(RecentReader().read_all(client, DEADLINE_S))
    assert not any(page.unreadable for page in pages)
    return [window for page in pages for window in page.windows]


def test_windows_tell_of_communicators_sizes_steps_and_devices(job: Job) -> None:
    started = job.command("start", kinds="Kernel,Communication", report_interval_s=WINDOW_S)
    assert started.outcome == "ok", started
    wait_for(lambda: len({(row["rank"], row["window"]) for row in lines(job)}) >= 8, "some windows")
    assert job.command("stop").outcome == "ok"
    wait_for(lambda: all(rank.ledger.exists() for rank in job.ranks), "the ledgers")
    ended = {window.session.rank: window.window.index for window in recent(job)}
    wait_for(
        lambda: set(ended.items()) <= {(row["rank"], row["window"]) for row in lines(job)},
        "the last windows",
    )
    for rank in job.ranks:
        check_against_ledger(
            [row for row in lines(job) if row["rank"] == rank.rank],
            json.loads(rank.ledger.read_text())["operators"],
        )
    check_digests(recent(job))


def check_against_ledger(rows: list[dict[str, Any]], ledger: list[dict[str, Any]]) -> None:
    """Compare what a rank's windows tell with what the simulation has recorded."""
    told: Counter[tuple[str, str, int]] = Counter()
    for row in rows:
        if row["kind"] == "Communication":
            told[row["name"], row["domain"], row["size_class"]] += row["count"]
    recorded = {
        item["name"].removeprefix("hcom_").partition("__")[0]: item["count"]
        for item in ledger
        if item["kind"] == "Communication"
    }
    assert told == {
        (operation, group, size): recorded[operation] for (operation, group), size in SIZES.items()
    }
    devices = [row for row in rows if row["kind"] == "device"]
    kernels_ns = sum(item["total_ns"] for item in ledger if item["kind"] == "Kernel")
    assert sum(row["busy_ns"] for row in devices) == kernels_ns  # they follow each other
    for row in devices:
        assert row["busy_ns"] + row["exposed_ns"] + row["idle_ns"] == row["measured_ns"]
    assert all(row["exposed_ns"] > 0 and row["idle_ns"] > 0 for row in devices[1:-1])
    steps = [row for row in rows if row["kind"] == "steps"]
    for row in steps[1:-1]:
        assert row["min_ns"] <= row["total_ns"] / row["count"] <= row["max_ns"]
    mean_ns = sum(row["total_ns"] for row in steps) / sum(row["count"] for row in steps)
    assert mean_ns == pytest.approx(STEP_S * 1e9, rel=0.1)


def check_digests(windows: list[SeenWindow]) -> None:
    """Check that a digest has the collectives of one step, each group's without a hole."""
    with_digest = Counter()
    for seen in windows:
        window, digest = seen.window, seen.window.collectives
        if not len(digest):
            continue
        assert window.digest_step > 0
        groups = Counter(window.names[group] for group in digest["group"].tolist())
        assert set(groups) <= {group for _, group in SIZES}
        start_ns = window.start_ns + digest["start_us"].astype(np.int64) * 1000
        assert start_ns.max() - start_ns.min() < 1.5 * STEP_S * 1e9
        assert (digest["lasted_ns"] > 0).all()
        for group in np.unique(digest["group"]).tolist():
            numbers = digest["number"][digest["group"] == group].tolist()
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        with_digest[seen.session.rank] += 1
    assert with_digest.keys() == {0, 1}
    assert min(with_digest.values()) >= 2
