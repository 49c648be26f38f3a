"""The times of a parallel job's steps."""

from __future__ import annotations

import numpy as np
import pytest

from msmon.simulation.parallel_job import (
    FAULTS,
    UNEVEN,
    Axis,
    JobShape,
    Noise,
    ParallelJob,
    ParallelLayout,
    planted,
)
from msmon.simulation.parallel_job.faults import SlowKernels
from msmon.simulation.parallel_job.pipeline import tasks_of

LAYOUT = ParallelLayout(tensor=2, pipeline=2, data=4, expert=2, ranks_per_host=4)
STILL = Noise(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
STEPS = np.arange(3)


def steps_of(*faults, noise=STILL):
    return ParallelJob(LAYOUT, JobShape(), noise, faults).steps(STEPS, STEPS.astype(float))


def test_groups_have_the_ranks_of_one_axis():
    assert LAYOUT.groups(Axis.TENSOR).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    assert np.flatnonzero(LAYOUT.groups(Axis.DATA) == 1).tolist() == [1, 3, 5, 7]
    assert np.flatnonzero(LAYOUT.groups(Axis.EXPERT) == 0).tolist() == [0, 2]
    assert np.flatnonzero(LAYOUT.groups(Axis.PIPELINE) == 0).tolist() == [0, 8]


def test_parts_of_experts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="do not divide"):
        ParallelLayout(data=4, expert=3)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 1), (4, 3), (4, 8)])
def test_each_stage_computes_every_micro_batch_forward_and_backward_once(stages, micro_batches):
    tasks = tasks_of(stages, micro_batches)
    assert len(tasks) == len(set(tasks)) == 2 * stages * micro_batches


def test_a_collective_ends_together_after_its_last_rank_has_come():
    for one in steps_of(noise=UNEVEN).collectives:
        groups = LAYOUT.groups(one.axis)
        for group in range(int(groups.max()) + 1):
            start, end = one.start_ns[:, groups == group], one.end_ns[:, groups == group]
            if not np.isnan(start).any():
                assert np.ptp(end, axis=1) == pytest.approx(0)
                assert (end.min(axis=1) > start.max(axis=1)).all()


def test_in_a_job_without_noise_nobody_waits_for_its_tensor_peers():
    for one in steps_of().collectives:
        if one.axis is Axis.TENSOR:
            starts = one.start_ns.reshape(-1, LAYOUT.tensor)
            assert starts[:, 0] == pytest.approx(starts[:, 1], nan_ok=True)


def test_a_slow_rank_waits_less_and_the_step_takes_longer():
    usual, slowed = steps_of(), steps_of(SlowKernels(ranks=(5,), factor=1.3))
    assert (slowed.step_ns > 1.1 * usual.step_ns).all()
    assert (np.argmin(slowed.exposed_ns, axis=1) == 5).all()
    assert slowed.kernels[0][0, 0, 5] == pytest.approx(1.3 * usual.kernels[0][0, 0, 5], rel=1e-5)


def test_time_is_computing_communicating_or_idle():
    times = steps_of(noise=UNEVEN)
    idle_ns = times.step_ns[:, None] - times.busy_ns - times.exposed_ns
    assert (idle_ns > 0).all()
    assert (idle_ns < 0.2 * times.step_ns[:, None]).all()


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_changes_something_when_it_begins_and_not_before(name):
    faults = planted(name, LAYOUT, 5, begin_s=1.0)
    changed = [
        not np.allclose(with_fault, without, rtol=1e-6)
        for with_fault, without in zip(_fingerprint(*faults), _fingerprint())
    ]
    from_the_start = {"slow-from-the-start", "long-stage", "uneven-lengths"}
    assert changed[0] == (name in from_the_start)
    assert any(changed[1:]) == (name != "healthy")


def _fingerprint(*faults):
    """The times of 20 steps, one second each."""
    numbers = np.arange(20)
    job = ParallelJob(LAYOUT, JobShape(micro_batches=2, layers=1), STILL, faults)
    times = job.steps(numbers, numbers * 60.0 / 59.0)
    return [np.concatenate([times.step_ns[step, None], times.exposed_ns[step]]) for step in numbers]
