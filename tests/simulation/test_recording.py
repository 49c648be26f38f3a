"""What the simulated device records, read back through the arena and the decoder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from msmon.ffi.arena import BufferArena
from msmon.ffi.decode import decode
from msmon.ffi.mspti import Mspti
from msmon.records.batch import Batch
from msmon.records.collectives import COLLECTIVE_KINDS, operation_of
from msmon.records.kinds import ActivityKind
from msmon.records.layout import NAMELESS_KINDS
from msmon.records.statistics.window_statistics import WindowStatistics
from msmon.records.windows import operator_rows
from msmon.settings.simulation import SimulatedRank
from msmon.simulation import SimulatedMspti, expected_step, parse_simulation
from msmon.simulation.image import CStrings, StepImage
from msmon.simulation.ledger import Ledger
from msmon.simulation.step import step_records
from msmon.simulation.timeline import Timeline
from msmon.simulation.workload import StepPlan

FAST = "rate=50000,step_ms=20,preload=1"
DEADLINE_S = 10


_arenas: list[BufferArena] = []
"""The simulation may hold addresses of these until it is stopped."""


class Reader:
    """Subscribes, and collects everything that a simulated library records."""

    def __init__(self, simulation: SimulatedMspti, mspti: Mspti) -> None:
        self.simulation = simulation
        self.mspti = mspti
        self._arena = BufferArena(slot_count=4, slot_bytes=4 << 20)
        _arenas.append(self._arena)
        self.batches: list[Batch] = []
        mspti.register_callbacks(self._arena.request_address, self._arena.complete_address)
        self._handle = mspti.subscribe()

    def enable(self, *kinds: ActivityKind) -> None:
        for kind in kinds:
            self.mspti.enable(kind)

    def drain(self) -> None:
        self.mspti.flush_all()
        for buffer in self._arena.completed():
            decoded = decode(self._arena.view(buffer))
            assert decoded.lost_bytes == 0
            self.batches += decoded.batches
            self._arena.release(buffer)

    def read_until(self, enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not enough():
            assert time.monotonic() < deadline, "the simulation records too little"
            time.sleep(0.005)
            self.drain()

    def stop(self) -> None:
        for kind in ActivityKind:
            self.mspti.disable(kind)
        self.mspti.unsubscribe(self._handle)
        self.drain()

    def count(self, kind: ActivityKind) -> int:
        return sum(len(batch) for batch in self.batches if batch.kind == kind)

    def records(self, kind: ActivityKind) -> np.ndarray:
        return np.concatenate([batch.records for batch in self.batches if batch.kind == kind])

    def texts(self, kind: ActivityKind, field: str) -> list[str]:
        chosen = [batch for batch in self.batches if batch.kind == kind]
        return [text for batch in chosen for text in batch.text(field)]


@pytest.fixture
def read(simulate) -> Callable[..., Reader]:
    def make(text: str = FAST, **arguments) -> Reader:
        return Reader(*simulate(text, **arguments))

    return make


def has_steps(reader: Reader, kind: ActivityKind, steps: int) -> Callable[[], bool]:
    """Return whether this many complete steps of a kind have arrived."""
    options = parse_simulation(FAST)
    expected = expected_step(options, SimulatedRank(0, 0, 1))
    per_step = sum(totals.count for key, totals in expected.items() if key[0] == kind)
    return lambda: reader.count(kind) >= steps * per_step


def test_what_is_read_is_what_was_recorded(read) -> None:
    reader = read()
    reader.enable(*ActivityKind)
    reader.read_until(has_steps(reader, ActivityKind.Kernel, 6))
    reader.stop()
    counts = Counter({kind: reader.count(kind) for kind in ActivityKind if reader.count(kind)})
    assert counts == reader.simulation.emitted
    assert set(counts) == set(ActivityKind) - {ActivityKind.ExternalCorrelation}


def test_ledger_has_the_operators_that_were_read(read) -> None:
    reader = read()
    reader.enable(ActivityKind.Kernel, ActivityKind.Communication)
    reader.read_until(has_steps(reader, ActivityKind.Kernel, 4))
    reader.stop()
    for kind in (ActivityKind.Kernel, ActivityKind.Communication):
        names = np.array(reader.texts(kind, "name"))
        records = reader.records(kind)
        durations = (records["end_ns"] - records["start_ns"]).astype(np.int64)
        for (of_kind, device_id, name), totals in reader.simulation.ledger.operators.items():
            if of_kind == kind:
                assert device_id == 0
                assert (names == name).sum() == totals.count
                assert durations[names == name].sum() == totals.total_ns


def test_window_statistics_agree_with_the_ledger(read) -> None:
    reader = read()
    reader.enable(*set(ActivityKind) - {ActivityKind.Marker})
    reader.read_until(has_steps(reader, ActivityKind.Kernel, 4))
    reader.stop()
    statistics = WindowStatistics()
    for batch in reader.batches:
        statistics.add(batch)
    counted = {
        (row.kind, row.device_id, row.name): (row.count, row.total_ns)
        for row in operator_rows(statistics.close(0, 0, 1))
        if row.kind not in NAMELESS_KINDS
    }
    assert counted == {
        (kind, device, operation_of(name) if kind in COLLECTIVE_KINDS else name): (
            totals.count,
            totals.total_ns,
        )
        for (kind, device, name), totals in reader.simulation.ledger.operators.items()
    }


def test_records_carry_real_time_and_growing_ids(read) -> None:
    begin_ns = time.time_ns()
    reader = read()
    reader.enable(ActivityKind.Kernel, ActivityKind.Marker)
    reader.read_until(has_steps(reader, ActivityKind.Kernel, 4))
    reader.stop()
    kernels = np.sort(reader.records(ActivityKind.Kernel), order="start_ns")
    assert begin_ns <= kernels["end_ns"][0]
    assert kernels["end_ns"][-1] <= time.time_ns()
    assert (kernels["end_ns"][:-1] <= kernels["start_ns"][1:]).all()
    assert (np.diff(kernels["correlation_id"].astype(np.int64)) > 0).all()
    markers = reader.records(ActivityKind.Marker)
    assert Counter(markers["id"].tolist()).most_common(1)[0][1] == 4


def test_step_ranges_are_numbered_on_the_common_grid(read) -> None:
    reader = read()
    reader.enable(ActivityKind.Marker)

    def steps() -> list[tuple[int, int]]:
        if not reader.batches:
            return []
        texts = reader.texts(ActivityKind.Marker, "name")
        return [
            (int(record["timestamp_ns"]), int(text.split()[1]))
            for record, text in zip(reader.records(ActivityKind.Marker), texts)
            if text.startswith("step ")
        ]

    reader.read_until(lambda: len(steps()) >= 4)
    reader.stop()
    for timestamp_ns, number in steps():
        assert timestamp_ns % 20_000_000 == 0
        assert timestamp_ns // 20_000_000 % 1_000_000 == number


def test_disabled_domain_has_no_markers(read) -> None:
    reader = read()
    reader.mspti.disable_marker_domain("communication")
    reader.enable(ActivityKind.Marker)
    reader.read_until(lambda: reader.count(ActivityKind.Marker) > 100)
    assert set(reader.texts(ActivityKind.Marker, "domain")) == {"", "default"}
    reader.mspti.enable_marker_domain("communication")
    reader.read_until(lambda: "communication" in reader.texts(ActivityKind.Marker, "domain"))
    reader.stop()


def test_only_enabled_kinds_are_recorded(read) -> None:
    reader = read()
    reader.enable(ActivityKind.Kernel)
    reader.read_until(lambda: reader.count(ActivityKind.Kernel) > 100)
    reader.enable(ActivityKind.RuntimeAPI)
    reader.mspti.disable(ActivityKind.Kernel)
    reader.drain()
    kernels = reader.count(ActivityKind.Kernel)
    reader.read_until(lambda: reader.count(ActivityKind.RuntimeAPI) > 100)
    reader.stop()
    assert reader.count(ActivityKind.Kernel) == kernels
    assert {batch.kind for batch in reader.batches} == {
        ActivityKind.Kernel,
        ActivityKind.RuntimeAPI,
    }


def test_kinds_must_be_enabled_again_after_the_next_subscribe(read, simulate) -> None:
    reader = read()
    reader.enable(ActivityKind.Kernel)
    reader.read_until(lambda: reader.count(ActivityKind.Kernel) > 0)
    reader.stop()
    again = Reader(reader.simulation, reader.mspti)
    again.enable(ActivityKind.RuntimeAPI)
    again.read_until(lambda: again.count(ActivityKind.RuntimeAPI) > 100)
    again.stop()
    assert again.count(ActivityKind.Kernel) == 0


def test_pushed_ids_come_with_every_new_correlation_id(read) -> None:
    reader = read()
    reader.mspti.push_external_correlation_id(2, 77)
    reader.mspti.push_external_correlation_id(3, 88)
    reader.enable(ActivityKind.ExternalCorrelation, ActivityKind.Kernel)
    reader.read_until(lambda: reader.count(ActivityKind.ExternalCorrelation) > 100)
    reader.stop()
    external = reader.records(ActivityKind.ExternalCorrelation)
    kernels = reader.records(ActivityKind.Kernel)
    pairs = {(int(item["external_kind"]), int(item["external_id"])) for item in external}
    assert pairs == {(2, 77), (3, 88)}
    for kind in (2, 3):
        ids = external["correlation_id"][external["external_kind"] == kind]
        assert sorted(ids.tolist()) == sorted(kernels["correlation_id"].tolist())
    assert reader.simulation.emitted[ActivityKind.ExternalCorrelation] == len(external)


def test_ranks_agree_on_the_end_of_every_collective(read) -> None:
    readers = [read(FAST, rank=rank, world_size=2) for rank in (0, 1)]
    ends = []
    for reader in readers:
        reader.enable(ActivityKind.Communication)
    for reader in readers:
        reader.read_until(lambda reader=reader: reader.count(ActivityKind.Communication) > 100)
    for reader in readers:
        reader.stop()
        ends.append(set(reader.records(ActivityKind.Communication)["end_ns"].tolist()))
    begin, end = max(map(min, ends)), min(map(max, ends))
    common = [{item for item in times if begin <= item <= end} for times in ends]
    assert common[0] == common[1]
    assert common[0]


def test_a_rank_is_slow_only_while_the_fault_file_exists(read, tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    text = f"rate=5000,step_ms=20,jitter=0,slow_rank=1,slow_factor=2,fault_file={fault}"
    reader = read(text, rank=1, world_size=2)
    reader.enable(ActivityKind.Kernel)

    def kernel_ns() -> int:
        """Return the time of all kernels of the last complete step."""
        records = reader.records(ActivityKind.Kernel)
        steps = records["start_ns"] // np.uint64(20_000_000)
        last = records[steps == steps.max() - 1]
        return int((last["end_ns"] - last["start_ns"]).sum())

    reader.read_until(lambda: reader.count(ActivityKind.Kernel) > 200)
    healthy_ns = kernel_ns()
    fault.touch()
    reader.read_until(lambda: kernel_ns() == pytest.approx(2 * healthy_ns, rel=0.01))
    fault.unlink()
    reader.read_until(lambda: kernel_ns() == pytest.approx(healthy_ns, rel=0.01))
    reader.stop()


def test_image_is_the_step_in_the_order_of_reporting() -> None:
    options, rank = parse_simulation("1"), SimulatedRank(0, 0, 1)
    timeline = Timeline(StepPlan(options), options, rank, variant=1, process_id=os.getpid())
    parts, strings = step_records(timeline), CStrings()
    image = StepImage(parts, (), strings, Ledger())
    image.stamp(10**18, 1000, 100, strings.step_name_address(42))
    assert (np.diff(image.report_ns) >= 0).all()
    decoded = {batch.kind: batch for batch in decode(image.data).batches}
    for part in parts:
        found, made = decoded[part.batch.kind], part.batch
        assert len(found) == len(made)
        time_field = "timestamp_ns" if made.kind == ActivityKind.Marker else "end_ns"
        order = np.argsort(made.records[time_field], kind="stable")
        assert (found.records[time_field] == made.records[time_field][order] + 10**18).all()
        if "correlation_id" in made.records.dtype.names:
            ids = made.records["correlation_id"][order] + 1000
            assert (found.records["correlation_id"] == ids).all()
        if "name" in made.records.dtype.names:
            names = [text.replace("step *", "step 42") for text in made.text("name")[order]]
            assert found.text("name").tolist() == names


def test_truth_is_written_at_unsubscribe_per_rank(read, tmp_path: Path) -> None:
    reader = read(f"{FAST},ledger={tmp_path}/truth-{{rank}}.json", rank=1, world_size=2)
    reader.enable(ActivityKind.Kernel)
    reader.read_until(lambda: reader.count(ActivityKind.Kernel) > 100)
    reader.stop()
    truth = json.loads((tmp_path / "truth-1.json").read_text(encoding="utf-8"))
    assert truth["emitted"] == {"Kernel": reader.count(ActivityKind.Kernel)}
    assert truth["dropped"] == 0
    assert sum(row["count"] for row in truth["operators"]) == reader.count(ActivityKind.Kernel)
    assert {row["device_id"] for row in truth["operators"]} == {1}


SCRIPT = """
import os, sys, warnings
from msmon.simulation import load_simulated
from msmon.ffi.arena import BufferArena
from msmon.records.kinds import ActivityKind
mspti = load_simulated({"MSMON_SIMULATE": "rate=50000,step_ms=20,ledger=" + sys.argv[1]})
arena = BufferArena(4, 1 << 20)
mspti.register_callbacks(arena.request_address, arena.complete_address)
handle = mspti.subscribe()
mspti.enable(ActivityKind.Kernel)
while not arena.completed():
    mspti.flush_all()
"""


def run_script(tail: str, ledger: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + tail, str(ledger)],
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_process_that_never_unsubscribes_ends_and_leaves_the_truth(tmp_path: Path) -> None:
    ledger = tmp_path / "truth.json"
    finished = run_script("", ledger)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert json.loads(ledger.read_text(encoding="utf-8"))["emitted"]["Kernel"] > 0


def test_forked_child_does_nothing_and_ends(tmp_path: Path) -> None:
    ledger = tmp_path / "truth.json"
    tail = """
warnings.simplefilter("ignore")  # Python warns about forking with threads
child = os.fork()
if not child:
    mspti.flush_all(); mspti.disable(ActivityKind.Kernel); mspti.unsubscribe(handle)
    sys.exit(os.path.exists(sys.argv[1]))
print(os.waitpid(child, 0)[1])
"""
    finished = run_script(tail, ledger)
    assert (finished.returncode, finished.stderr, finished.stdout) == (0, "", "0\n")
