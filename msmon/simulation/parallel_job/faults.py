"""What can be wrong with a parallel job, planted by name.

A fault holds from ``begin_s`` to ``end_s`` seconds after the job's start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from msmon.records.batch import Column
from msmon.simulation.parallel_job.conditions import Conditions
from msmon.simulation.parallel_job.layout import Axis, ParallelLayout
from msmon.simulation.parallel_job.shape import KERNELS


@dataclass(frozen=True)
class Planted:
    """A fault. Subclasses say what it changes."""

    begin_s: float = 0.0
    end_s: float = math.inf

    def plant(self, conditions: Conditions) -> None:
        """Change the conditions of the steps in which it holds."""
        seconds = conditions.seconds
        holds = (seconds >= self.begin_s) & (seconds < self.end_s)
        if holds.any():
            self.change(conditions, np.flatnonzero(holds))

    def change(self, conditions: Conditions, steps: Column) -> None:
        """Change the conditions of some steps; ``steps`` are their places."""
        raise NotImplementedError


@dataclass(frozen=True)
class SlowKernels(Planted):
    """Ranks that need longer for some kernels, or for all of them; for good, or more and more."""

    ranks: tuple[int, ...] = ()
    factor: float = 1.0
    kernels: tuple[str, ...] = tuple(kernel.name for kernel in KERNELS)
    per_minute: float = 0.0
    """By how much it grows in a minute, as a share."""

    def change(self, conditions: Conditions, steps: Column) -> None:
        """Slow these ranks down."""
        minutes = (conditions.seconds[steps] - self.begin_s) / 60
        factor = self.factor + self.per_minute * minutes
        places = [place for place, one in enumerate(KERNELS) if one.name in self.kernels]
        where = np.ix_(steps, np.array(places), np.array(self.ranks))
        conditions.kernels[where] *= factor[:, None, None]


@dataclass(frozen=True)
class LateInput(Planted):
    """Ranks whose input comes late: in each step, or in one of ``every`` steps, as when Python
    collects its garbage."""

    ranks: tuple[int, ...] = ()
    delay_ns: float = 0.0
    every: int = 1

    def change(self, conditions: Conditions, steps: Column) -> None:
        """Let these ranks wait; each has its own rhythm."""
        for rank in self.ranks:
            mine = steps[(conditions.numbers[steps] + 7 * rank) % self.every == 0]
            conditions.input_ns[mine, rank] += self.delay_ns


@dataclass(frozen=True)
class SlowHost(Planted):
    """Ranks whose host launches kernels too slowly: their devices have gaps before each layer."""

    ranks: tuple[int, ...] = ()
    calls: float = 3.0
    gap_ns: float = 0.0

    def change(self, conditions: Conditions, steps: Column) -> None:
        """Slow down the calls and leave gaps."""
        where = np.ix_(steps, np.array(self.ranks))
        conditions.host_calls[where] *= self.calls
        conditions.gaps_ns[where] += self.gap_ns


@dataclass(frozen=True)
class SlowNetwork(Planted):
    """Ranks with a slow network card: all that leaves the host takes longer."""

    ranks: tuple[int, ...] = ()
    factor: float = 1.0

    def change(self, conditions: Conditions, steps: Column) -> None:
        """Slow down their transfers."""
        conditions.network[np.ix_(steps, np.array(self.ranks))] *= self.factor


@dataclass(frozen=True)
class SlowGroup(Planted):
    """A group whose transfers take longer, as over a bad cable."""

    axis: Axis = Axis.DATA
    group: int = 0
    factor: float = 1.0

    def change(self, conditions: Conditions, steps: Column) -> None:
        """Slow down its transfers."""
        factor = np.ones(len(conditions.seconds))
        factor[steps] = self.factor
        conditions.links[self.axis, self.group] = factor


@dataclass(frozen=True)
class UnevenLengths(Planted):
    """Sequences of uneven length, on all ranks."""

    spread: float = 0.25

    def change(self, conditions: Conditions, steps: Column) -> None:
        """Let lengths differ; they do so in all steps."""
        conditions.more_lengths = self.spread


@dataclass(frozen=True)
class Wandering(Planted):
    """Another rank is slow every few seconds, so that no rank is slow for long."""

    factor: float = 1.0
    stays_s: float = 10.0
    seed: int = 1

    def change(self, conditions: Conditions, steps: Column) -> None:
        """Slow down the rank whose turn it is."""
        ranks = conditions.layout.ranks
        order = np.random.default_rng(self.seed).permutation(ranks)
        turn = (conditions.seconds[steps] // self.stays_s).astype(np.int64) % ranks
        for step, rank in zip(steps.tolist(), order[turn].tolist()):
            conditions.kernels[step, :, rank] *= self.factor


Maker = Callable[[ParallelLayout, int, float], tuple[Planted, ...]]
"""(layout, the rank it is about, begin in seconds) → the fault, or several at once."""


def _stage_ranks(layout: ParallelLayout, stage: int) -> tuple[int, ...]:
    size = layout.data * layout.tensor
    return tuple(range(stage * size, (stage + 1) * size))


def _host_ranks(layout: ParallelLayout, rank: int) -> tuple[int, ...]:
    host = layout.host_of(rank)
    return tuple(one for one in range(layout.ranks) if layout.host_of(one) == host)


def other_rank(layout: ParallelLayout, rank: int) -> int:
    """Return a rank of another stage and another part of the data than ``rank``."""
    stage, data, tensor = np.unravel_index(rank, layout.shape)
    place = ((stage + 1) % layout.pipeline, (data + 1) % layout.data, tensor)
    return int(np.ravel_multi_index(place, layout.shape))


FAULTS: dict[str, Maker] = {
    "healthy": lambda layout, rank, begin: (),
    "slow-kernel": lambda layout, rank, begin: (
        SlowKernels(begin, ranks=(rank,), factor=1.4, kernels=("MatMulV3",)),
    ),
    "slow-10-percent": lambda layout, rank, begin: (SlowKernels(begin, ranks=(rank,), factor=1.1),),
    "slow-from-the-start": lambda layout, rank, begin: (SlowKernels(ranks=(rank,), factor=1.2),),
    "drift": lambda layout, rank, begin: (
        SlowKernels(begin, ranks=(rank,), factor=1.0, per_minute=0.005),
    ),
    "thermal-step": lambda layout, rank, begin: (
        SlowKernels(begin, ranks=_host_ranks(layout, rank), factor=1.15),
    ),
    "slow-for-a-while": lambda layout, rank, begin: (
        SlowKernels(begin, begin + 400, (rank,), 1.3),
    ),
    "collector-pauses": lambda layout, rank, begin: (
        LateInput(begin, ranks=(rank,), delay_ns=60e6, every=3),
    ),
    "collector-pauses-of-all": lambda layout, rank, begin: (
        LateInput(begin, ranks=tuple(range(layout.ranks)), delay_ns=60e6, every=13),
    ),
    "slow-input": lambda layout, rank, begin: (LateInput(begin, ranks=(rank,), delay_ns=30e6),),
    "slow-host": lambda layout, rank, begin: (SlowHost(begin, ranks=(rank,), gap_ns=500_000),),
    "slow-nic": lambda layout, rank, begin: (SlowNetwork(begin, ranks=(rank,), factor=2.0),),
    "slow-group": lambda layout, rank, begin: (
        SlowGroup(begin, group=int(layout.groups(Axis.DATA)[rank]), factor=2.0),
    ),
    "uneven-lengths": lambda layout, rank, begin: (UnevenLengths(),),
    "long-stage": lambda layout, rank, begin: (
        SlowKernels(ranks=_stage_ranks(layout, layout.pipeline - 1), factor=1.5),
    ),
    "all-slower": lambda layout, rank, begin: (
        SlowKernels(begin, ranks=tuple(range(layout.ranks)), factor=1.08),
    ),
    "wandering": lambda layout, rank, begin: (Wandering(begin, factor=1.4),),
    "two-slow-ranks": lambda layout, rank, begin: (
        SlowKernels(begin, ranks=(rank,), factor=1.3),
        SlowKernels(begin, ranks=(other_rank(layout, rank),), factor=1.25),
    ),
    "slow-rank-and-slow-input": lambda layout, rank, begin: (
        SlowKernels(begin, ranks=(rank,), factor=1.3),
        LateInput(begin, ranks=(other_rank(layout, rank),), delay_ns=60e6),
    ),
}
"""Name → what is planted."""


def planted(name: str, layout: ParallelLayout, rank: int, begin_s: float) -> tuple[Planted, ...]:
    """Return a fault by its name. Raises KeyError when there is none of that name."""
    return FAULTS[name](layout, rank, begin_s)
