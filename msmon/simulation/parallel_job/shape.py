"""What a step computes and sends, and how much its times vary while all is well.

The noise follows public production traces: medians of a rank's kernels differ from those of its
peers by 0.3 to 0.5 %, the calls of one kernel by 2 to 4 %, and with sequences of uneven length ten
times as much.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """A kernel: its usual duration, calls in each layer of a forward and of a backward pass, and
    with which power of the sequence length its duration grows."""

    name: str
    usual_ns: float
    forward: int
    backward: int
    length_power: float = 1.0


MATMUL = Kernel("MatMulV3", 400_000.0, 2, 4)
ATTENTION = Kernel("FlashAttentionScore", 700_000.0, 1, 0, 2.0)
ATTENTION_GRAD = Kernel("FlashAttentionScoreGrad", 1_300_000.0, 0, 1, 2.0)
NORM = Kernel("LayerNormV4", 80_000.0, 1, 1)
ADAM = Kernel("ApplyAdamW", 300_000.0, 0, 0, 0.0)

KERNELS = (MATMUL, ATTENTION, ATTENTION_GRAD, NORM, ADAM)
"""ADAM runs in the optimizer, after the passes."""

HOST_CALL = "aclnnMatmul"
HOST_CALL_NS = 18_000.0


@dataclass(frozen=True)
class JobShape:
    """The sizes of a step. Transfers are what a collective needs once all its ranks are there."""

    micro_batches: int = 8
    layers: int = 2
    """Layers of each stage."""
    scale: float = 1.0
    """By how much all times are longer than those of ``KERNELS``."""
    optimizer_calls: int = 8
    tensor_transfer_ns: float = 300_000.0
    expert_transfer_ns: float = 500_000.0
    stage_transfer_ns: float = 400_000.0
    data_transfer_ns: float = 6_000_000.0
    """A bucket of gradients. The parameters are gathered in half of it."""
    buckets: int = 3
    world_transfer_ns: float = 200_000.0
    input_ns: float = 1_000_000.0
    """How long the device usually waits for the input of a step."""


@dataclass(frozen=True)
class Noise:
    """How much times vary. Shares are standard deviations, 0.01 is 1 %."""

    of_a_rank: float = 0.003
    """Ranks that differ for good, by their chips."""
    of_a_window: float = 0.002
    """A rank that wanders to and fro, within some minutes."""
    of_a_call: float = 0.03
    of_a_transfer: float = 0.05
    of_the_input: float = 0.3
    hiccups: float = 0.002
    """Share of the steps of a rank that a hiccup of its host delays."""
    hiccup_ns: float = 15_000_000.0
    """How long one lasts on average."""
    of_lengths: float = 0.0
    """How much the sequences of micro-batches differ in length."""
    clock_ns: float = 500_000.0
    """How far the clocks of the hosts are apart."""


EVEN = Noise()
UNEVEN = Noise(of_lengths=0.15)
