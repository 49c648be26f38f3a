"""Which rank holds which part of a job, and which groups communicate.

Ranks are numbered as Megatron does it: the parts of a tensor next to each other, then the parts of
the data, then the stages. Example, 2 stages, 2 parts of the data, 2 of each tensor::

    stage 0   data 0: ranks 0 1   data 1: ranks 2 3
    stage 1   data 0: ranks 4 5   data 1: ranks 6 7
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from msmon.records.batch import Column
from msmon.vocabulary import Vocabulary


class Axis(Vocabulary):
    """Along what the ranks of a group differ."""

    TENSOR = "tp"
    DATA = "dp"
    EXPERT = "ep"
    PIPELINE = "pp"
    WORLD = "world"


@dataclass(frozen=True)
class ParallelLayout:
    """How many parts there are of each. Raises ValueError where they don't fit together."""

    tensor: int = 2
    pipeline: int = 2
    data: int = 4
    expert: int = 1
    """Ranks that share the experts of a layer, side by side among the parts of the data; 1: the
    model has no experts."""
    ranks_per_host: int = 8

    def __post_init__(self) -> None:
        if min(self.tensor, self.pipeline, self.data, self.expert, self.ranks_per_host) < 1:
            raise ValueError("each axis of a layout has at least one part")
        if self.data % self.expert:
            raise ValueError(f"{self.expert} parts of the experts do not divide {self.data}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(stages, parts of the data, parts of a tensor): the shape of an array over the ranks."""
        return self.pipeline, self.data, self.tensor

    @property
    def ranks(self) -> int:
        """How many ranks the job has."""
        return self.pipeline * self.data * self.tensor

    def host_of(self, rank: int) -> int:
        """Return the number of the host that a rank runs on."""
        return rank // self.ranks_per_host

    def stage_of(self, rank: int) -> int:
        """Return the stage of a rank."""
        return rank // (self.data * self.tensor)

    def groups(self, axis: Axis) -> Column:
        """Return the group that each rank has along an axis, numbered from 0; shape (ranks,)."""
        stage, data, tensor = np.unravel_index(np.arange(self.ranks), self.shape)
        if axis is Axis.TENSOR:
            return stage * self.data + data
        if axis is Axis.DATA:
            return stage * self.tensor + tensor
        if axis is Axis.PIPELINE:
            return data * self.tensor + tensor
        if axis is Axis.EXPERT:
            shares = self.data // self.expert
            return (stage * shares + data // self.expert) * self.tensor + tensor
        return np.zeros(self.ranks, np.int64)

    def size(self, axis: Axis) -> int:
        """Return how many ranks a group along an axis has."""
        sizes = {
            Axis.TENSOR: self.tensor,
            Axis.DATA: self.data,
            Axis.PIPELINE: self.pipeline,
            Axis.EXPERT: self.expert,
        }
        return sizes.get(axis, self.ranks)
