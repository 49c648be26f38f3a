"""The times of some steps of a parallel job, on all ranks.

A simulated step begins when all ranks have reduced the norm of the gradients, and ends when they do
so again: optimizer, gathering of the parameters, input, the passes of all micro-batches, reduction
of the gradients, norm. So no rank carries a delay into the next step, and all steps are computed at
once: arrays have a first axis for the steps.

A collective ends on all its ranks when the last one has come and the transfer is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from msmon.records.batch import Column
from msmon.simulation.parallel_job.conditions import Conditions
from msmon.simulation.parallel_job.faults import Planted
from msmon.simulation.parallel_job.layout import Axis, ParallelLayout
from msmon.simulation.parallel_job.pipeline import tasks_of
from msmon.simulation.parallel_job.shape import (
    ADAM,
    HOST_CALL_NS,
    KERNELS,
    JobShape,
    Kernel,
    Noise,
)

WANDER_S = 200.0
"""After so long a rank's wandering has changed its direction."""

HOST_CALLS_PER_STEP = 12
"""Calls of the host whose durations are drawn; there are more."""


@dataclass(frozen=True)
class CollectiveTimes:
    """One collective of each group along an axis. ``start_ns`` and ``end_ns`` have shape (steps,
    ranks) and count from the step's start; NaN on ranks that take no part."""

    axis: Axis
    operation: str
    size_class: int
    start_ns: Column
    end_ns: Column


@dataclass
class StepTimes:
    """The times of some steps. Arrays over the steps and the ranks have shape (steps, ranks)."""

    layout: ParallelLayout
    numbers: Column
    seconds: Column
    kernels: list[Column]
    """Durations in ns by kernel, each of shape (steps, calls, ranks)."""
    host_calls: Column
    """Durations in ns of the host's calls, shape (steps, calls, ranks)."""
    collectives: list[CollectiveTimes] = field(default_factory=list)
    """In the order of each rank. Those of other stages come between them."""
    received_ns: Column = field(default_factory=lambda: np.zeros(0))
    """Time in receives from other stages, the wait included."""
    step_ns: Column = field(default_factory=lambda: np.zeros(0))
    """Duration of each step, shape (steps,)."""

    @property
    def busy_ns(self) -> Column:
        """How long the device computed."""
        total: Column = sum(durations.sum(axis=1, dtype=np.float64) for durations in self.kernels)
        return total

    @property
    def exposed_ns(self) -> Column:
        """How long the device communicated; nothing is hidden by kernels here."""
        lasted = (np.nan_to_num(one.end_ns - one.start_ns) for one in self.collectives)
        total: Column = self.received_ns + sum(lasted)
        return total


class ParallelJob:
    """A job whose steps can be had in any number. Belongs to one thread.

    All follows from ``seed``; the ranks' lasting differences from it alone, so that the steps may
    be asked for in parts.
    """

    def __init__(
        self,
        layout: ParallelLayout,
        shape: JobShape,
        noise: Noise,
        faults: Sequence[Planted] = (),
        seed: int = 0,
    ) -> None:
        self.layout, self.shape, self.noise = layout, shape, noise
        self._faults = tuple(faults)
        lasting = np.random.default_rng([seed, 0])
        self._rank_factor = 1 + noise.of_a_rank * lasting.standard_normal(layout.ranks)
        self._wander_phase = lasting.uniform(0, 2 * np.pi, layout.ranks)
        hosts = layout.host_of(layout.ranks - 1) + 1
        self.clock_ns = noise.clock_ns * lasting.standard_normal(hosts)
        """How far the clock of each host is from the true time."""
        self._random = np.random.default_rng([seed, 1])
        self._tasks = tasks_of(layout.pipeline, shape.micro_batches)

    def steps(self, numbers: Column, seconds: Column) -> StepTimes:
        """Return the times of the steps with these numbers that begin at ``seconds`` after the
        job's start; both of shape (steps,)."""
        conditions = Conditions(self.layout, seconds, numbers)
        for fault in self._faults:
            fault.plant(conditions)
        return _Run(self, conditions).times()

    def rank_factors(self, seconds: Column) -> Column:
        """Return how much longer each rank needs than others, shape (steps, ranks)."""
        wander = np.sin(2 * np.pi * seconds[:, None] / WANDER_S + self._wander_phase)
        factors: Column = self._rank_factor * (1 + 2**0.5 * self.noise.of_a_window * wander)
        return factors


class _Run:
    """One computation. ``_clock`` says how far each rank is, shape (steps, *layout.shape)."""

    def __init__(self, job: ParallelJob, conditions: Conditions) -> None:
        self._job, self._conditions = job, conditions
        self._layout, self._shape, self._noise = job.layout, job.shape, job.noise
        self._random = job._random
        self._steps = len(conditions.seconds)
        self._over_ranks = (self._steps, *job.layout.shape)
        self._clock = np.zeros(self._over_ranks)
        self._received = np.zeros(self._over_ranks)
        factors = job.rank_factors(conditions.seconds)[:, None] * conditions.kernels
        self._factors = factors.astype(np.float32).reshape(self._steps, -1, *job.layout.shape)
        self._gaps = conditions.gaps_ns.reshape(self._over_ranks)
        self._durations: list[list[list[Column]]] = [
            [[] for _ in range(job.layout.pipeline)] for _ in KERNELS
        ]
        self._collectives: list[CollectiveTimes] = []
        self._transfer_factors = {axis: self._transfer_factor(axis) for axis in Axis}
        self._lengths = self._drawn_lengths()

    def times(self) -> StepTimes:
        """Compute the steps."""
        for stage in range(self._layout.pipeline):
            self._compute(stage, [(ADAM, self._shape.optimizer_calls)], None)
        self._meet(Axis.DATA, "allGather", 26, self._shape.data_transfer_ns / 2)
        self._clock += self._input_wait()
        self._pass_micro_batches()
        for _ in range(self._shape.buckets):
            self._meet(Axis.DATA, "reduceScatter", 27, self._shape.data_transfer_ns)
        self._meet(Axis.WORLD, "allReduce", 2, self._shape.world_transfer_ns)
        flat = (self._steps, self._layout.ranks)
        return StepTimes(
            self._layout,
            self._conditions.numbers,
            self._conditions.seconds,
            [self._all_calls(place) for place in range(len(KERNELS))],
            self._host_calls(),
            self._collectives,
            self._received.reshape(flat),
            self._clock.max(axis=(1, 2, 3)),
        )

    def _pass_micro_batches(self) -> None:
        sent: dict[tuple[int, bool, int], Column] = {}
        for stage, forward, number in self._job._tasks:
            source = stage - 1 if forward else stage + 1
            if 0 <= source < self._layout.pipeline:
                self._receive(stage, sent.pop((source, forward, number)))
            for _ in range(self._shape.layers):
                calls = [
                    (kernel, kernel.forward if forward else kernel.backward) for kernel in KERNELS
                ]
                self._compute(stage, calls, self._lengths[:, number])
                self._meet(Axis.TENSOR, "allReduce", 24, self._shape.tensor_transfer_ns, stage)
                self._meet(Axis.EXPERT, "alltoall", 22, self._shape.expert_transfer_ns, stage)
            sent[stage, forward, number] = self._clock[:, stage].copy()

    def _receive(self, stage: int, sent: Column) -> None:
        factor = self._transfer_factors[Axis.PIPELINE][:, stage]
        arrived = sent + self._shape.stage_transfer_ns * self._shape.scale * factor
        ready = self._clock[:, stage].copy()
        np.maximum(ready, arrived, out=self._clock[:, stage])
        self._received[:, stage] += self._clock[:, stage] - ready

    def _compute(self, stage: int, calls: list[tuple[Kernel, int]], lengths: Column | None) -> None:
        """Let the ranks of a stage run some kernels; ``lengths`` has shape (steps, data)."""
        spent = self._gaps[:, stage].copy()
        for place, kernel in enumerate(KERNELS):
            count = sum(number for wanted, number in calls if wanted is kernel)
            if not count:
                continue
            shape = (self._steps, count, self._layout.data, self._layout.tensor)
            noise = self._random.standard_normal(shape, np.float32)
            lasted = noise * np.float32(self._noise.of_a_call) + np.float32(1)
            np.maximum(lasted, np.float32(0.5), out=lasted)
            usual = self._factors[:, place, stage] * np.float32(kernel.usual_ns * self._shape.scale)
            if lengths is not None and self._uneven:
                usual = usual * lengths[:, :, None] ** np.float32(kernel.length_power)
            lasted *= usual[:, None]
            self._durations[place][stage].append(lasted)
            spent += lasted.sum(axis=1)
        self._clock[:, stage] += spent

    def _meet(
        self, axis: Axis, operation: str, size_class: int, transfer_ns: float, stage: int = -1
    ) -> None:
        """Let all groups along an axis meet, of one stage or of all (-1)."""
        if self._layout.size(axis) == 1:
            return
        which = slice(stage, stage + 1) if stage >= 0 else slice(None)
        start = self._clock[:, which].copy()
        last = self._last_of_group(axis, start)
        noise = 1 + self._noise.of_a_transfer * np.abs(self._random.standard_normal(last.shape))
        factor = self._transfer_factors[axis][:, which]
        took = transfer_ns * self._shape.scale * noise * factor
        end = self._last_of_group(axis, start) + self._last_of_group(axis, took)
        self._clock[:, which] = end
        self._collectives.append(
            CollectiveTimes(
                axis, operation, size_class, self._on_all(start, which), self._on_all(end, which)
            )
        )

    def _last_of_group(self, axis: Axis, times: Column) -> Column:
        """Return the largest time of each rank's group, in the shape of ``times``."""
        if axis is Axis.WORLD:
            over: Column = times.max(axis=(1, 2, 3), keepdims=True)
        elif axis is Axis.TENSOR:
            over = times.max(axis=3, keepdims=True)
        elif axis is Axis.DATA:
            over = times.max(axis=2, keepdims=True)
        else:
            steps, stages, data, tensor = times.shape
            expert = self._layout.expert
            apart = times.reshape(steps, stages, data // expert, expert, tensor)
            largest = apart.max(axis=3, keepdims=True)
            return np.broadcast_to(largest, apart.shape).reshape(times.shape)
        return np.broadcast_to(over, times.shape)

    def _on_all(self, times: Column, which: slice) -> Column:
        everywhere = np.full(self._over_ranks, np.nan)
        everywhere[:, which] = times
        return everywhere.reshape(self._steps, -1)

    def _transfer_factor(self, axis: Axis) -> Column:
        """Return the factor of each rank's transfers along an axis, shape of the clock."""
        groups = self._layout.groups(axis)
        hosts = np.array([self._layout.host_of(rank) for rank in range(self._layout.ranks)])
        leaves_host = np.zeros(int(groups.max()) + 1, bool)
        for group in range(len(leaves_host)):
            leaves_host[group] = len(np.unique(hosts[groups == group])) > 1
        factor = np.where(leaves_host[groups], self._conditions.network, 1.0)
        for (of_axis, group), more in self._conditions.links.items():
            if of_axis is axis:
                factor[:, groups == group] *= more[:, None]
        return factor.reshape(self._over_ranks)

    @property
    def _uneven(self) -> bool:
        return self._noise.of_lengths + self._conditions.more_lengths > 0

    def _drawn_lengths(self) -> Column:
        """Return the sequence length of each micro-batch, shape (steps, micro-batches, data)."""
        shape = (self._steps, self._shape.micro_batches, self._layout.data)
        spread = np.hypot(self._noise.of_lengths, self._conditions.more_lengths)
        drawn = np.exp(spread * self._random.standard_normal(shape) - spread**2 / 2)
        lengths: Column = drawn.astype(np.float32)
        return lengths

    def _input_wait(self) -> Column:
        shape = (self._steps, self._layout.ranks)
        usual = self._shape.input_ns * self._shape.scale
        noise = np.abs(1 + self._noise.of_the_input * self._random.standard_normal(shape))
        hiccup = self._random.random(shape) < self._noise.hiccups
        lost = self._random.exponential(self._noise.hiccup_ns, shape) * hiccup
        waits: Column = usual * noise + lost + self._conditions.input_ns
        return waits.reshape(self._over_ranks)

    def _all_calls(self, place: int) -> Column:
        """Return the durations of one kernel; all stages call it equally often."""
        stages = [np.concatenate(calls, axis=1) for calls in self._durations[place]]
        together = np.stack(stages, axis=2)
        return together.reshape(self._steps, together.shape[1], -1)

    def _host_calls(self) -> Column:
        shape = (self._steps, HOST_CALLS_PER_STEP, self._layout.ranks)
        noise = 1 + 0.1 * np.abs(self._random.standard_normal(shape, np.float32))
        lasted: Column = HOST_CALL_NS * noise * self._conditions.host_calls[:, None]
        return lasted
