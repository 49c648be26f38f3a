"""The simulated job: one schedule that all ranks agree on."""

from __future__ import annotations

import numpy as np
import pytest

from msmon.simulation import SimulatedRank, SimulationOptions, parse_simulation
from msmon.simulation.workload import VARIANTS, Schedule, StepPlan, schedule_step

WORLD_SIZE = 4


def schedule(options: SimulationOptions, rank: int = 0, variant: int = 0) -> Schedule:
    return schedule_step(StepPlan(options), options, SimulatedRank(rank, rank, WORLD_SIZE), variant)


@pytest.mark.parametrize("text", ["1", "rate=200000,jitter=0.9", "slow_rank=1,slow_factor=10"])
@pytest.mark.parametrize("variant", range(VARIANTS))
def test_kernels_follow_each_other_on_the_compute_stream(text: str, variant: int) -> None:
    placed = schedule(parse_simulation(text), variant=variant)
    assert (placed.kernel_start_ns <= placed.kernel_end_ns).all()
    assert (placed.kernel_end_ns[:-1] <= placed.kernel_start_ns[1:]).all()


@pytest.mark.parametrize("text", ["1", "rate=200000,jitter=0.9", "slow_rank=1,slow_factor=10"])
def test_step_fits_into_its_length(text: str) -> None:
    options = parse_simulation(text)
    for variant in range(VARIANTS):
        assert schedule(options, variant=variant).collective_end_ns[-1] < options.step_ns


def test_no_kernel_runs_during_a_collective() -> None:
    options = SimulationOptions()
    plan, placed = StepPlan(options), schedule(options)
    for index, (start_ns, end_ns) in enumerate(
        zip(placed.collective_start_ns, placed.collective_end_ns)
    ):
        before = plan.kernel_segments <= index
        assert (placed.kernel_end_ns[before] <= start_ns).all()
        assert (placed.kernel_start_ns[~before] >= end_ns).all()


def test_ranks_leave_a_collective_together() -> None:
    ends = [schedule(SimulationOptions(), rank).collective_end_ns for rank in range(WORLD_SIZE)]
    assert all((end == ends[0]).all() for end in ends)


def test_slow_rank_spends_the_least_time_in_every_collective() -> None:
    options = parse_simulation("slow_rank=2,slow_factor=1.3,jitter=0.05")
    spent = []
    for rank in range(WORLD_SIZE):
        placed = schedule(options, rank)
        spent.append(placed.collective_end_ns - placed.collective_start_ns)
    assert (np.argmin(np.stack(spent), axis=0) == 2).all()


def test_slow_rank_computes_longer_by_its_factor() -> None:
    options = parse_simulation("slow_rank=2,slow_factor=1.5,jitter=0")
    computed = [
        float((placed.kernel_end_ns - placed.kernel_start_ns).sum())
        for placed in (schedule(options, rank) for rank in (0, 2))
    ]
    assert computed[1] / computed[0] == pytest.approx(1.5, rel=1e-3)


def test_seed_fixes_the_schedule() -> None:
    first, again = schedule(parse_simulation("seed=3")), schedule(parse_simulation("seed=3"))
    other = schedule(parse_simulation("seed=4"))
    assert (first.kernel_start_ns == again.kernel_start_ns).all()
    assert (first.kernel_start_ns != other.kernel_start_ns).any()


def test_variants_and_ranks_differ() -> None:
    options = SimulationOptions()
    starts = [
        schedule(options, rank, variant).kernel_start_ns for rank in (0, 1) for variant in (0, 1)
    ]
    assert len({tuple(item.tolist()) for item in starts}) == 4
