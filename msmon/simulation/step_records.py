"""Records of kernels, collectives, host calls and memory in one simulated step."""

from __future__ import annotations

import numpy as np

from msmon.records.batch import Batch, Column
from msmon.records.kinds import (
    HOST_DEVICE_ID,
    INVALID_ID,
    ActivityKind,
    CommunicationDataType,
    MemcpyKind,
    MemoryKind,
    MemoryOperation,
)
from msmon.simulation.timeline import (
    COMMUNICATION_STREAM,
    COMPUTE_STREAM,
    HOST_START,
    StepRecords,
    TextIds,
    Timeline,
    empty_records,
)
from msmon.simulation.workload import COLLECTIVES, OPERATORS

BLOCK_BYTES = 64 << 20
FIRST_BLOCK_ADDRESS = 0x1200_0000_0000
ELEMENTS_PER_TRANSFER = 1 << 22
BYTES_PER_ELEMENT = 2

_CALL_SHARES = {
    ActivityKind.AclAPI: (0.00, 0.50),
    ActivityKind.API: (0.05, 0.40),
    ActivityKind.NodeAPI: (0.05, 0.40),
    ActivityKind.RuntimeAPI: (0.10, 0.30),
}
"""Begin and length of the nested host calls, as shares of their kernel's duration (of a
collective: of the shortest kernel's, since its launch does not wait for the others)."""

_CALL_NAMES = {
    ActivityKind.API: "launch",
    ActivityKind.NodeAPI: "launch",
    ActivityKind.RuntimeAPI: "rtKernelLaunchWithHandleV2",
}
"""API and NodeAPI are the same events; an AclAPI call is named after what it launches."""


def kernel_records(timeline: Timeline) -> StepRecords:
    """Return the kernels of the compute stream."""
    texts = TextIds()
    operators = timeline.plan.kernel_operators
    records = empty_records(ActivityKind.Kernel, len(operators))
    records["start_ns"] = timeline.schedule.kernel_start_ns
    records["end_ns"] = timeline.schedule.kernel_end_ns
    records["device_id"] = timeline.device_id
    records["stream_id"] = COMPUTE_STREAM
    records["correlation_id"] = timeline.kernel_correlation_ids
    records["type"] = texts.ids(operator.kernel_type for operator in OPERATORS)[operators]
    records["name"] = texts.ids(operator.name for operator in OPERATORS)[operators]
    batch = Batch(ActivityKind.Kernel, records, texts.strings)
    return StepRecords.timed(batch, timeline.device_id, records["name"])


def call_records(timeline: Timeline, kind: ActivityKind) -> StepRecords:
    """Return the host calls of one API kind: one per kernel, then one per collective, with
    the correlation ids of what they launch."""
    texts = TextIds()
    plan, schedule = timeline.plan, timeline.schedule
    begin, length = _CALL_SHARES[kind]
    kernel_ns = schedule.kernel_end_ns - schedule.kernel_start_ns
    collective_ns = np.full(len(plan.collectives), kernel_ns.min())
    unit_ns = np.concatenate((kernel_ns, collective_ns))
    launched_ns = np.concatenate((schedule.kernel_start_ns, schedule.collective_start_ns))
    start_ns = timeline.host_ns(launched_ns) + begin * unit_ns
    records = empty_records(kind, len(launched_ns))
    records["start_ns"] = start_ns
    records["end_ns"] = start_ns + length * unit_ns
    records["process_id"] = timeline.process_id
    records["thread_id"] = timeline.process_id  # the main thread's id is the process's
    records["correlation_id"] = np.concatenate(
        (timeline.kernel_correlation_ids, timeline.collective_correlation_ids)
    )
    if kind == ActivityKind.AclAPI:
        kernels = texts.ids(operator.acl_name for operator in OPERATORS)[plan.kernel_operators]
        collectives = texts.ids(item.hccl_name for item in COLLECTIVES)[plan.collective_operators]
        records["name"] = np.concatenate((kernels, collectives))
    else:
        records["name"] = texts.id(_CALL_NAMES[kind])
    return StepRecords.timed(Batch(kind, records, texts.strings), HOST_DEVICE_ID, records["name"])


def communication_records(timeline: Timeline) -> StepRecords:
    """Return the collectives as CANN reports them."""
    texts = TextIds()
    collectives = timeline.plan.collective_operators
    records = empty_records(ActivityKind.Communication, len(collectives))
    records["data_type"] = CommunicationDataType.BFP16
    records["count"] = _elements(collectives)
    records["device_id"] = timeline.device_id
    records["stream_id"] = COMMUNICATION_STREAM
    records["start_ns"] = timeline.schedule.collective_start_ns
    records["end_ns"] = timeline.schedule.collective_end_ns
    records["alg_type"] = texts.id("RING")
    records["name"] = texts.ids(item.name for item in COLLECTIVES)[collectives]
    records["comm_name"] = texts.ids(item.comm_name for item in COLLECTIVES)[collectives]
    records["correlation_id"] = timeline.collective_correlation_ids
    batch = Batch(ActivityKind.Communication, records, texts.strings)
    return StepRecords.timed(batch, timeline.device_id, records["name"])


def hccl_records(timeline: Timeline) -> StepRecords:
    """Return the same collectives as the interposed HCCL functions report them."""
    texts = TextIds()
    collectives = timeline.plan.collective_operators
    records = empty_records(ActivityKind.Hccl, len(collectives))
    records["start_ns"] = timeline.schedule.collective_start_ns
    records["end_ns"] = timeline.schedule.collective_end_ns
    records["device_id"] = timeline.device_id
    records["stream_id"] = COMMUNICATION_STREAM
    durations_ns = np.maximum(records["end_ns"] - records["start_ns"], 1)
    records["bandwidth_gb_per_s"] = _elements(collectives) * BYTES_PER_ELEMENT / durations_ns
    records["name"] = texts.ids(item.hccl_name for item in COLLECTIVES)[collectives]
    records["comm_name"] = texts.ids(item.comm_name for item in COLLECTIVES)[collectives]
    batch = Batch(ActivityKind.Hccl, records, texts.strings)
    return StepRecords.timed(batch, timeline.device_id, records["name"])


def memory_records(timeline: Timeline) -> StepRecords:
    """Return a block per micro batch: allocated when its forward begins, freed after it."""
    starts_ns, ends_ns = timeline.forward_host_ns()
    count = len(starts_ns)
    records = empty_records(ActivityKind.Memory, 2 * count)
    records["operation"] = np.repeat([MemoryOperation.ALLOCATION, MemoryOperation.RELEASE], count)
    records["memory_kind"] = MemoryKind.DEVICE
    records["correlation_id"] = timeline.extra_correlation_ids(0, 2 * count)
    records["start_ns"] = np.concatenate((starts_ns, ends_ns))
    records["end_ns"] = records["start_ns"] + _short_ns(timeline)
    blocks = FIRST_BLOCK_ADDRESS + BLOCK_BYTES * np.arange(count, dtype=np.uint64)
    records["address"] = np.tile(blocks, 2)
    records["size_bytes"] = BLOCK_BYTES
    records["process_id"] = timeline.process_id
    records["device_id"] = timeline.device_id
    records["stream_id"] = INVALID_ID
    return StepRecords.timed(Batch(ActivityKind.Memory, records, ("",)), timeline.device_id)


def memset_records(timeline: Timeline) -> StepRecords:
    """Return the one that clears the gradients before the first forward."""
    start_ns = np.array([int(HOST_START * timeline.step_ns)])
    records = _transfer_records(ActivityKind.MemSet, timeline, start_ns)
    first = 2 * timeline.plan.micro_batches
    records["correlation_id"] = timeline.extra_correlation_ids(first, 1)
    return StepRecords.timed(Batch(ActivityKind.MemSet, records, ("",)), timeline.device_id)


def memcpy_records(timeline: Timeline) -> StepRecords:
    """Return the copies of each micro batch's input to the device."""
    starts_ns, _ = timeline.forward_host_ns()
    records = _transfer_records(ActivityKind.MemCpy, timeline, starts_ns)
    records["copy_kind"] = MemcpyKind.HTOD
    first = 2 * timeline.plan.micro_batches + 1
    records["correlation_id"] = timeline.extra_correlation_ids(first, len(records))
    return StepRecords.timed(Batch(ActivityKind.MemCpy, records, ("",)), timeline.device_id)


def _transfer_records(kind: ActivityKind, timeline: Timeline, start_ns: Column) -> Column:
    records = empty_records(kind, len(start_ns))
    records["size_bytes"] = BLOCK_BYTES
    records["start_ns"] = start_ns
    records["end_ns"] = records["start_ns"] + _short_ns(timeline)
    records["device_id"] = timeline.device_id
    records["stream_id"] = COMPUTE_STREAM
    records["is_async"] = 1
    return records


def _short_ns(timeline: Timeline) -> int:
    """Duration of a host call that only hands something over."""
    return max(1, timeline.step_ns // 10_000)


def _elements(collectives: Column) -> Column:
    weights = np.array([item.weight for item in COLLECTIVES])[collectives]
    elements: Column = (weights * ELEMENTS_PER_TRANSFER).astype(np.uint64)
    return elements
