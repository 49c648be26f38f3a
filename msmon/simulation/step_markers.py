"""Marker records of one simulated step: mstx ranges of the step, its phases, its collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import HOST_DEVICE_ID, ActivityKind, MarkerFlag, SourceKind
from msmon.simulation.step_records import ELEMENTS_PER_TRANSFER
from msmon.simulation.timeline import (
    COMMUNICATION_STREAM,
    COMPUTE_STREAM,
    HOST_START,
    StepRecords,
    TextIds,
    Timeline,
)
from msmon.simulation.workload import COLLECTIVES, Collective

STEP_RANGE = "step *"
"""Stands for ``step N`` where N is the step's number."""
DEFAULT_DOMAIN = "default"
COMMUNICATION_DOMAIN = "communication"


@dataclass(frozen=True)
class MarkerRange:
    """A range: host times, and device times when it was given a stream."""

    name: str
    domain: str
    host_ns: tuple[int, int]
    device_ns: tuple[int, int] | None
    stream_id: int = COMPUTE_STREAM


def marker_records(timeline: Timeline) -> StepRecords:
    """Return the two or four records of each range; only host starts carry its texts."""
    texts = TextIds()
    rows = [
        row
        for number, item in enumerate(_ranges(timeline), start=1)
        for row in _range_rows(timeline, item, number, texts)
    ]
    records, event_text, domain_text, duration_ns, device_id = zip(*rows)
    kind = ActivityKind.Marker
    return StepRecords(
        Batch(kind, np.array(list(records), dtype=DTYPES[kind]), texts.strings),
        event_text=np.array(event_text, dtype=np.uint64),
        domain_text=np.array(domain_text, dtype=np.uint64),
        duration_ns=np.array(duration_ns, dtype=np.int64),
        device_id=np.array(device_id, dtype=np.int64),
    )


def _range_rows(
    timeline: Timeline, item: MarkerRange, number: int, texts: TextIds
) -> Iterator[tuple[tuple[int, ...], int, int, int, int]]:
    """Yield (record, event text, domain text, duration, device) of a range's records."""
    name, domain = texts.id(item.name), texts.id(item.domain)
    if item.device_ns is None:
        start_flag, end_flag = MarkerFlag.START, MarkerFlag.END
    else:
        start_flag, end_flag = MarkerFlag.START_WITH_DEVICE, MarkerFlag.END_WITH_DEVICE
    kind, process_id = ActivityKind.Marker, timeline.process_id

    begin_ns, end_ns = item.host_ns
    head = (kind, start_flag, SourceKind.HOST, begin_ns, number, process_id, process_id)
    yield (*head, name, domain), 0, domain, 0, HOST_DEVICE_ID
    head = (kind, end_flag, SourceKind.HOST, end_ns, number, process_id, process_id)
    yield (*head, 0, 0), name, domain, end_ns - begin_ns, HOST_DEVICE_ID
    if item.device_ns is None:
        return
    device_id = timeline.device_id
    begin_ns, end_ns = item.device_ns
    head = (kind, start_flag, SourceKind.DEVICE, begin_ns, number, device_id, item.stream_id)
    yield (*head, 0, 0), 0, domain, 0, device_id
    head = (kind, end_flag, SourceKind.DEVICE, end_ns, number, device_id, item.stream_id)
    yield (*head, 0, 0), name, domain, end_ns - begin_ns, device_id


def _ranges(timeline: Timeline) -> Sequence[MarkerRange]:
    """Return every mstx range of the step, in the order of their ids."""
    schedule, step_ns = timeline.schedule, timeline.step_ns
    device_ns = (int(schedule.kernel_start_ns[0]), int(schedule.collective_end_ns[-1]))
    dataloader_ns = (0, int(HOST_START * step_ns) // 2)
    ranges = [
        MarkerRange(STEP_RANGE, DEFAULT_DOMAIN, (0, step_ns - 1), device_ns),
        MarkerRange("dataloader", DEFAULT_DOMAIN, dataloader_ns, None),
    ]
    for phase in timeline.plan.phases:
        start_ns = schedule.kernel_start_ns[phase.first]
        end_ns = schedule.kernel_end_ns[phase.last]
        ranges.append(_launched(timeline, phase.name, start_ns, end_ns))
    for index, start_ns, end_ns in zip(
        timeline.plan.collective_operators,
        schedule.collective_start_ns,
        schedule.collective_end_ns,
    ):
        ranges.append(_launched_collective(timeline, COLLECTIVES[index], start_ns, end_ns))
    return ranges


def _launched(timeline: Timeline, name: str, start_ns: int, end_ns: int) -> MarkerRange:
    host_ns = timeline.host_ns(np.array([start_ns, end_ns]))
    return MarkerRange(
        name, DEFAULT_DOMAIN, (int(host_ns[0]), int(host_ns[1])), (int(start_ns), int(end_ns))
    )


def _launched_collective(
    timeline: Timeline, collective: Collective, start_ns: int, end_ns: int
) -> MarkerRange:
    """Return the range that torch_npu puts around each collective."""
    host_ns = timeline.host_ns(np.array([start_ns, end_ns]))
    elements = int(collective.weight * ELEMENTS_PER_TRANSFER)
    message = (
        f'{{"opName": "{collective.hccl_name}", "groupName": "{collective.comm_name}", '
        f'"dataType": "bfp16", "count": "{elements}"}}'
    )
    return MarkerRange(
        message,
        COMMUNICATION_DOMAIN,
        (int(host_ns[0]), int(host_ns[1])),
        (int(start_ns), int(end_ns)),
        COMMUNICATION_STREAM,
    )
