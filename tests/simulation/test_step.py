"""The records of one simulated step, before they become bytes."""

from __future__ import annotations

import numpy as np
import pytest

from msmon.records.kinds import ActivityKind, MarkerFlag, SourceKind
from msmon.records.layout import API_KINDS
from msmon.simulation import SimulatedRank, SimulationOptions, expected_step, parse_simulation
from msmon.simulation.step import step_records
from msmon.simulation.timeline import StepRecords, Timeline
from msmon.simulation.workload import ALL_REDUCE, VARIANTS, StepPlan, schedule_step

RANK = SimulatedRank(5, 1, 8)
PROCESS_ID = 4321
LAUNCHED = (ActivityKind.Kernel, ActivityKind.Communication)


def timeline(options: SimulationOptions, variant: int = 0) -> Timeline:
    return Timeline(StepPlan(options), options, RANK, variant, PROCESS_ID)


def records_of(options: SimulationOptions | None = None) -> dict[ActivityKind, StepRecords]:
    made = step_records(timeline(options or SimulationOptions()))
    return {part.batch.kind: part for part in made}


def column(records: StepRecords, field: str) -> list[int]:
    numbers: list[int] = records.batch.records[field].tolist()
    return numbers


@pytest.mark.parametrize("rate", [1_200, 3_000, 20_000, 100_000, 1_000_000])
def test_a_step_has_as_many_records_as_the_rate_asks_for(rate: int) -> None:
    options = parse_simulation(f"rate={rate}")
    total = sum(len(part.batch) for part in step_records(timeline(options)))
    assert total == pytest.approx(options.records_per_step, abs=3)


def test_every_kind_but_external_correlation_occurs() -> None:
    assert set(records_of()) == set(ActivityKind) - {ActivityKind.ExternalCorrelation}


def test_every_launch_shares_its_correlation_id_with_its_host_calls() -> None:
    made = records_of()
    launched_ids = [id_ for kind in LAUNCHED for id_ in column(made[kind], "correlation_id")]
    for kind in API_KINDS:
        assert column(made[kind], "correlation_id") == launched_ids


def test_host_launches_before_the_device_starts() -> None:
    made = records_of()
    launched_ns = np.array([ns for kind in LAUNCHED for ns in column(made[kind], "start_ns")])
    for kind in API_KINDS:
        assert (np.array(column(made[kind], "start_ns")) < launched_ns).all()


def test_host_calls_are_nested() -> None:
    made = {kind: records_of()[kind].batch.records for kind in API_KINDS}
    outside = [ActivityKind.AclAPI, ActivityKind.NodeAPI, ActivityKind.RuntimeAPI]
    for outer, inner in zip(outside, outside[1:]):
        assert (made[outer]["start_ns"] <= made[inner]["start_ns"]).all()
        assert (made[inner]["end_ns"] <= made[outer]["end_ns"]).all()


def test_step_draws_as_many_ids_as_the_plan_says() -> None:
    options = SimulationOptions()
    plan, made = StepPlan(options), records_of(options)
    drawing = (
        *(ActivityKind.Kernel, ActivityKind.Communication),
        *(ActivityKind.Memory, ActivityKind.MemSet, ActivityKind.MemCpy),
    )
    drawn = np.concatenate([made[kind].batch.records["correlation_id"] for kind in drawing])
    assert sorted(drawn.tolist()) == list(range(1, plan.correlation_ids + 1))
    marker_ids = np.unique(made[ActivityKind.Marker].batch.records["id"])
    assert marker_ids.tolist() == list(range(1, plan.ranges + 1))


def test_everything_is_reported_within_the_step() -> None:
    options = SimulationOptions()
    for variant in range(VARIANTS):
        for part in step_records(timeline(options, variant)):
            field = "timestamp_ns" if part.batch.kind == ActivityKind.Marker else "end_ns"
            assert part.batch.records[field].min() >= 0
            assert part.batch.records[field].max() < options.step_ns


def test_a_range_with_a_stream_has_four_records_and_one_without_has_two() -> None:
    batch = records_of()[ActivityKind.Marker].batch
    names = batch.text("name")
    for name, wanted in (("step *", 4), ("dataloader", 2), ("optimizer", 4)):
        marker_id = batch.records["id"][names == name][0]
        found = batch.records[batch.records["id"] == marker_id]
        shapes = {(int(item["flag"]), int(item["source_kind"])) for item in found}
        if wanted == 2:
            flags = (MarkerFlag.START, MarkerFlag.END)
            assert shapes == {(flag, SourceKind.HOST) for flag in flags}
        else:
            flags = (MarkerFlag.START_WITH_DEVICE, MarkerFlag.END_WITH_DEVICE)
            assert shapes == {(flag, source) for flag in flags for source in SourceKind}
        assert len(found) == wanted


def test_only_host_starts_of_ranges_carry_texts() -> None:
    batch = records_of()[ActivityKind.Marker].batch
    starts = (MarkerFlag.START, MarkerFlag.START_WITH_DEVICE)
    host_start = np.isin(batch.records["flag"], starts)
    host_start &= batch.records["source_kind"] == SourceKind.HOST
    assert ((batch.text("name") != "") == host_start).all()
    assert ((batch.text("domain") != "") == host_start).all()


def test_every_collective_has_a_range_in_its_own_domain() -> None:
    made = records_of()
    domains = made[ActivityKind.Marker].batch.text("domain").tolist()
    assert domains.count("communication") == len(made[ActivityKind.Communication].batch)


def test_slow_link_makes_one_all_reduce_in_four_steps_longer() -> None:
    options = parse_simulation("slow_link=5")
    plan, alone = StepPlan(options), SimulatedRank(0, 0, 1)  # nobody to wait for: only transfers
    all_reduces = np.array([item is ALL_REDUCE for item in plan.collectives])
    for variant in range(VARIANTS):
        schedule = schedule_step(plan, options, alone, variant)
        transfers_ns = schedule.collective_end_ns - schedule.collective_start_ns
        times_usual = transfers_ns[all_reduces] / transfers_ns[all_reduces][-1]
        assert times_usual[0] == pytest.approx(5 if variant == 0 else 1, rel=1e-3)
        assert times_usual[1:] == pytest.approx(1, rel=1e-3)


def test_bandwidth_is_bytes_per_ns() -> None:
    made = records_of()
    sizes = made[ActivityKind.Communication].batch.records["count"] * 2
    hccl = made[ActivityKind.Hccl].batch.records
    durations = hccl["end_ns"] - hccl["start_ns"]
    assert np.allclose(hccl["bandwidth_gb_per_s"], sizes / durations)


def test_expected_step_sums_up_the_records() -> None:
    options = SimulationOptions()
    expected = expected_step(options, RANK)
    kernels = [
        records_of(options)[ActivityKind.Kernel].batch
        if variant == 0
        else step_records(timeline(options, variant))[0].batch
        for variant in range(VARIANTS)
    ]
    durations = np.concatenate(
        [
            (batch.records["end_ns"] - batch.records["start_ns"])[batch.text("name") == "MatMulV3"]
            for batch in kernels
        ]
    )
    totals = expected[ActivityKind.Kernel, RANK.local_rank, "MatMulV3"]
    assert totals.count == len(durations) / VARIANTS
    assert totals.mean_ns == pytest.approx(durations.mean())


def test_expected_step_counts_ranges_once_per_source() -> None:
    expected = expected_step(SimulationOptions(), RANK)
    for device_id in (-1, RANK.local_rank):
        assert expected[ActivityKind.Marker, device_id, "step *"].count == 1
    assert (ActivityKind.Marker, RANK.local_rank, "dataloader") not in expected
