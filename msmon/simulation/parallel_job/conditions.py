"""How the times of some steps differ from what is usual: the knobs that a fault turns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from msmon.records.batch import Column
from msmon.simulation.parallel_job.layout import Axis, ParallelLayout
from msmon.simulation.parallel_job.shape import KERNELS


@dataclass
class Conditions:
    """Some steps of a job; ``seconds`` (shape (steps,)) says when each one began.

    Factors are 1 and times 0 unless something is wrong. Written by the faults, one after another.
    """

    layout: ParallelLayout
    seconds: Column
    numbers: Column
    """Numbers of the steps, shape (steps,)."""
    kernels: Column = field(init=False)
    """Factor of each kernel, shape (steps, kernels, ranks)."""
    input_ns: Column = field(init=False)
    """Extra wait for the input of a step, shape (steps, ranks)."""
    gaps_ns: Column = field(init=False)
    """Extra time without work before each layer, shape (steps, ranks)."""
    host_calls: Column = field(init=False)
    """Factor of the host's calls, shape (steps, ranks)."""
    network: Column = field(init=False)
    """Factor of transfers that a rank takes part in and that leave its host, (steps, ranks)."""
    links: dict[tuple[Axis, int], Column] = field(default_factory=dict)
    """(axis, group) → factor of its transfers, shape (steps,)."""
    more_lengths: float = 0.0
    """By how much sequences differ in length, beside the usual noise."""

    def __post_init__(self) -> None:
        steps, ranks = len(self.seconds), self.layout.ranks
        self.kernels = np.ones((steps, len(KERNELS), ranks), np.float32)
        self.input_ns = np.zeros((steps, ranks))
        self.gaps_ns = np.zeros((steps, ranks))
        self.host_calls = np.ones((steps, ranks))
        self.network = np.ones((steps, ranks))
