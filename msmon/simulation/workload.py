"""The simulated job: one training step of a transformer, as every rank runs it.

A step is some micro batches of forward and backward through the layers, with a collective
after each layer's pass, then gradients reduced, optimizer kernels, and parameters gathered.
Ranks meet in collectives: all leave one at the same time, so the rank that arrives last
spends the least time in it. A few jittered variants of the step take turns; all follow from
the seed alone, so ranks agree without talking to each other.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from msmon.records.batch import Column
from msmon.settings.simulation import SimulatedRank, SimulationOptions

VARIANTS = 4
"""Different steps before the pattern repeats."""

DEVICE_START = 0.05
"""Share of the step after which the device starts."""
DEVICE_SHARE = 0.92
"""Share of the step in which the device works, on the critical path with the largest jitter."""
TRANSFER_SHARE = 0.2
"""Share of the device's time spent in transfers of collectives."""
BUSY_SHARE = 0.95
"""Share of a kernel's slot in which it runs; the rest is the gap before the next."""

RECORDS_PER_KERNEL = 5
"""Kernel, API, NodeAPI, AclAPI and RuntimeAPI."""
RECORDS_PER_COLLECTIVE = 10
"""Communication, Hccl, the four API kinds and the four markers of a range in domain
``communication``."""
RECORDS_PER_MICRO_BATCH = 11
"""Two ranges of four markers, a copy, an allocation and a release."""
RECORDS_PER_STEP = 11
"""The ranges of step (4), optimizer (4) and dataloader (2), and a memset."""


@dataclass(frozen=True)
class Operator:
    """A kernel and the ACL call that launches it; ``weight`` is its relative duration."""

    name: str
    kernel_type: str
    acl_name: str
    weight: float


@dataclass(frozen=True)
class Collective:
    """A communication operator; ``hccl_name`` is the HCCL function behind it."""

    name: str
    hccl_name: str
    comm_name: str
    weight: float


LAYER_NORM = Operator("LayerNormV4", "KERNEL_AIVEC", "aclnnLayerNorm", 0.6)
LAYER_NORM_GRAD = Operator("LayerNormGradV3", "KERNEL_AIVEC", "aclnnLayerNormBackward", 1.0)
MATMUL = Operator("MatMulV3", "KERNEL_AICORE", "aclnnMatmul", 4.0)
BATCH_MATMUL = Operator("BatchMatMulV2", "KERNEL_AICORE", "aclnnBatchMatMul", 2.5)
ATTENTION = Operator("FlashAttentionScore", "KERNEL_MIX_AIC", "aclnnFlashAttentionScore", 5.0)
ATTENTION_GRAD = Operator(
    "FlashAttentionScoreGrad", "KERNEL_MIX_AIC", "aclnnFlashAttentionScoreGrad", 9.0
)
GELU = Operator("Gelu", "KERNEL_AIVEC", "aclnnGelu", 0.7)
GELU_GRAD = Operator("GeluGrad", "KERNEL_AIVEC", "aclnnGeluBackward", 0.9)
SOFTMAX = Operator("SoftmaxV2", "KERNEL_AIVEC", "aclnnSoftmax", 0.8)
SOFTMAX_GRAD = Operator("SoftmaxGrad", "KERNEL_AIVEC", "aclnnSoftmaxBackward", 0.9)
ADD = Operator("Add", "KERNEL_AIVEC", "aclnnAdd", 0.3)
NORM = Operator("LpNormV2", "KERNEL_AIVEC", "aclnnNorm", 0.8)
ADAM = Operator("ApplyAdamW", "KERNEL_AIVEC", "aclnnApplyAdamW", 0.8)

OPERATORS = (
    LAYER_NORM,
    LAYER_NORM_GRAD,
    MATMUL,
    BATCH_MATMUL,
    ATTENTION,
    ATTENTION_GRAD,
    GELU,
    GELU_GRAD,
    SOFTMAX,
    SOFTMAX_GRAD,
    ADD,
    NORM,
    ADAM,
)
FORWARD_LAYER = (LAYER_NORM, MATMUL, ATTENTION, MATMUL, ADD, LAYER_NORM, MATMUL, GELU, MATMUL, ADD)
FORWARD_HEAD = (LAYER_NORM, BATCH_MATMUL, SOFTMAX)
BACKWARD_HEAD = (SOFTMAX_GRAD, BATCH_MATMUL, BATCH_MATMUL, LAYER_NORM_GRAD)
BACKWARD_LAYER = (
    *(MATMUL, MATMUL, GELU_GRAD, MATMUL, MATMUL, LAYER_NORM_GRAD, ADD),
    *(MATMUL, MATMUL, ATTENTION_GRAD, MATMUL, MATMUL, LAYER_NORM_GRAD, ADD),
)

ALL_REDUCE = Collective("hcom_allReduce__101_0_1", "HcclAllReduce", "tensor_parallel_group", 1.0)
REDUCE_SCATTER = Collective(
    "hcom_reduceScatter__102_0_1", "HcclReduceScatter", "data_parallel_group", 4.0
)
ALL_GATHER = Collective("hcom_allGather__102_1_1", "HcclAllGather", "data_parallel_group", 3.0)
COLLECTIVES = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER)


@dataclass(frozen=True)
class Phase:
    """A named run of kernels in the step: ``first`` to ``last``, both inclusive."""

    name: str
    first: int
    last: int


class StepPlan:
    """What one step executes, in the order of the compute stream; the same on all ranks.

    ``kernel_operators`` (indices into OPERATORS) and ``kernel_segments`` (how many collectives
    came before) have one item per kernel, ``collective_operators`` (indices into COLLECTIVES)
    one per collective.
    """

    def __init__(self, options: SimulationOptions) -> None:
        fixed = RECORDS_PER_STEP + 2 * RECORDS_PER_COLLECTIVE + RECORDS_PER_KERNEL
        spare = options.records_per_step - fixed
        layers = options.layers
        while layers > 1 and _records_per_micro_batch(layers) + RECORDS_PER_KERNEL > spare:
            layers -= 1
        per_micro_batch = _records_per_micro_batch(layers)
        self.micro_batches = max(1, int((spare - RECORDS_PER_KERNEL) // per_micro_batch))
        rest = spare - self.micro_batches * per_micro_batch
        self._kernels: list[Operator] = []
        self._segments: list[int] = []
        self.collectives: list[Collective] = []
        self.phases: list[Phase] = []
        for _ in range(self.micro_batches):
            self._micro_batch(layers)
        self._run((NORM,))
        self.collectives.append(REDUCE_SCATTER)
        self._phase("optimizer", len(self._kernels))
        self._run((ADAM,) * max(1, round(rest / RECORDS_PER_KERNEL)))
        self._end_phase()
        self.collectives.append(ALL_GATHER)
        index_of = {operator: index for index, operator in enumerate(OPERATORS)}
        self.kernel_operators: Column = np.array([index_of[item] for item in self._kernels])
        self.kernel_segments: Column = np.array(self._segments)
        self.collective_operators: Column = np.array(
            [COLLECTIVES.index(item) for item in self.collectives]
        )

    @property
    def correlation_ids(self) -> int:
        """Correlation ids that a step draws: kernels, collectives, memory, copies, memset."""
        launches = len(self.kernel_operators) + len(self.collectives)
        return launches + 3 * self.micro_batches + 1

    @property
    def ranges(self) -> int:
        """Marker ids that a step draws: step, dataloader, phases, collectives."""
        return 2 + len(self.phases) + len(self.collectives)

    def _micro_batch(self, layers: int) -> None:
        self._phase("forward", len(self._kernels))
        for _ in range(layers):
            self._run(FORWARD_LAYER)
            self.collectives.append(ALL_REDUCE)
        self._run(FORWARD_HEAD)
        self._end_phase()
        self._phase("backward", len(self._kernels))
        self._run(BACKWARD_HEAD)
        for _ in range(layers):
            self._run(BACKWARD_LAYER)
            self.collectives.append(ALL_REDUCE)
        self._end_phase()

    def _phase(self, name: str, first: int) -> None:
        self.phases.append(Phase(name, first, first))

    def _end_phase(self) -> None:
        opened = self.phases[-1]
        self.phases[-1] = Phase(opened.name, opened.first, len(self._kernels) - 1)

    def _run(self, operators: tuple[Operator, ...]) -> None:
        self._kernels += operators
        self._segments += [len(self.collectives)] * len(operators)


def _records_per_micro_batch(layers: int) -> int:
    kernels = layers * (len(FORWARD_LAYER) + len(BACKWARD_LAYER))
    kernels += len(FORWARD_HEAD) + len(BACKWARD_HEAD)
    collectives = 2 * layers * RECORDS_PER_COLLECTIVE
    return kernels * RECORDS_PER_KERNEL + collectives + RECORDS_PER_MICRO_BATCH


@dataclass(frozen=True)
class Schedule:
    """Device times of one step on one rank, int64 ns from the step's origin.

    Kernels have shape (kernels,), collectives (collectives,), in the plan's order.
    """

    kernel_start_ns: Column
    kernel_end_ns: Column
    collective_start_ns: Column
    collective_end_ns: Column


def schedule_step(
    plan: StepPlan,
    options: SimulationOptions,
    rank: SimulatedRank,
    variant: int,
    faulty: bool = True,
) -> Schedule:
    """Place one variant of the step in time; without ``faulty`` nothing is slow in it.

    Between two collectives lies a segment of kernels; what each rank needs for each segment
    says when it arrives at the collective, and the last arrival when all may leave.
    """
    slots_ns = _kernel_slots_ns(plan, options)
    if not faulty:
        options = dataclasses.replace(options, slow_rank=-1, slow_link=1.0)
    base_ns = np.bincount(plan.kernel_segments, slots_ns, minlength=len(plan.collectives))
    ranks_ns = base_ns * _segment_factors(options, rank.world_size, variant, len(base_ns))
    own_ns = ranks_ns[rank.rank]
    common_end_ns = DEVICE_START * options.step_ns + np.cumsum(
        ranks_ns.max(axis=0) + _transfers_ns(plan, options, variant)
    )
    begin_ns = np.concatenate(([DEVICE_START * options.step_ns], common_end_ns[:-1]))

    own_random = np.random.default_rng([options.seed, variant, rank.rank + 1])
    own_slots_ns = slots_ns * (1 + options.jitter * own_random.uniform(-1, 1, size=len(slots_ns)))
    jittered_ns = np.bincount(plan.kernel_segments, own_slots_ns, minlength=len(base_ns))
    scale = np.divide(own_ns, jittered_ns, out=np.ones_like(own_ns), where=jittered_ns > 0)
    own_slots_ns *= scale[plan.kernel_segments]
    before_ns = np.concatenate(([0.0], np.cumsum(own_ns)[:-1]))
    start_ns = np.cumsum(own_slots_ns) - own_slots_ns + (begin_ns - before_ns)[plan.kernel_segments]
    return Schedule(
        start_ns.astype(np.int64),
        (start_ns + BUSY_SHARE * own_slots_ns).astype(np.int64),
        (begin_ns + own_ns).astype(np.int64),
        common_end_ns.astype(np.int64),
    )


def _kernel_slots_ns(plan: StepPlan, options: SimulationOptions) -> Column:
    """Return undisturbed slot lengths that leave the slowest rank room at the worst jitter."""
    weights = np.array([operator.weight for operator in OPERATORS])[plan.kernel_operators]
    slowest = max(1.0, options.slow_factor if options.slow_rank >= 0 else 1.0)
    room_ns = DEVICE_SHARE * (1 - TRANSFER_SHARE) * options.step_ns
    slots_ns: Column = weights * (room_ns / (slowest * (1 + options.jitter)) / weights.sum())
    return slots_ns


def _transfers_ns(plan: StepPlan, options: SimulationOptions, variant: int) -> Column:
    weights = np.array([collective.weight for collective in plan.collectives])
    if variant == 0:
        weights[plan.collectives.index(ALL_REDUCE)] *= options.slow_link
    transfers_ns: Column = weights * DEVICE_SHARE * TRANSFER_SHARE * options.step_ns / weights.sum()
    return transfers_ns


def _segment_factors(
    options: SimulationOptions, world_size: int, variant: int, segments: int
) -> Column:
    """Return how much longer each rank needs for each segment, shape (world_size, segments)."""
    random = np.random.default_rng([options.seed, variant, 0])
    factors = 1 + options.jitter * random.uniform(-1, 1, size=(world_size, segments))
    if 0 <= options.slow_rank < world_size:
        factors[options.slow_rank] *= options.slow_factor
    jittered: Column = factors
    return jittered
