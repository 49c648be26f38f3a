"""All records of one simulated step, and what an average step should amount to.

Both the simulation and the tests that judge what came out of msmon read this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from msmon.records.kinds import ActivityKind
from msmon.records.layout import API_KINDS
from msmon.settings.simulation import SimulatedRank, SimulationOptions
from msmon.simulation.step_markers import marker_records
from msmon.simulation.step_records import (
    call_records,
    communication_records,
    hccl_records,
    kernel_records,
    memcpy_records,
    memory_records,
    memset_records,
)
from msmon.simulation.timeline import StepRecords, Timeline
from msmon.simulation.workload import VARIANTS, StepPlan

OperatorKey = tuple[ActivityKind, int, str]
"""Kind, device id (-1: host) and name. A range counts under the name of its start, once for
the host and once for the device."""


@dataclass(frozen=True)
class OperatorTotals:
    """Number and summed duration of an operator's records (of a marker: of its ranges)."""

    count: float = 0
    total_ns: float = 0

    @property
    def mean_ns(self) -> float:
        """Mean duration."""
        return self.total_ns / self.count


def step_records(timeline: Timeline) -> tuple[StepRecords, ...]:
    """Return the records of every kind but ExternalCorrelation, which follows pushed ids."""
    return (
        kernel_records(timeline),
        communication_records(timeline),
        hccl_records(timeline),
        *(call_records(timeline, kind) for kind in sorted(API_KINDS)),
        marker_records(timeline),
        memory_records(timeline),
        memset_records(timeline),
        memcpy_records(timeline),
    )


def expected_step(
    options: SimulationOptions, rank: SimulatedRank
) -> dict[OperatorKey, OperatorTotals]:
    """Return what an average step of a rank has per operator, all kinds enabled."""
    plan = StepPlan(options)
    totals: dict[OperatorKey, OperatorTotals] = {}
    for variant in range(VARIANTS):
        timeline = Timeline(plan, options, rank, variant, process_id=0)
        for records in step_records(timeline):
            for key, count, total_ns in _operator_sums(records):
                known = totals.get(key, OperatorTotals())
                totals[key] = OperatorTotals(
                    known.count + count / VARIANTS, known.total_ns + total_ns / VARIANTS
                )
    return totals


def _operator_sums(records: StepRecords) -> Iterator[tuple[OperatorKey, int, int]]:
    keys = np.stack([records.device_id, records.event_text.astype(np.int64)], axis=1)
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    counts = np.bincount(inverse)
    totals_ns = np.bincount(inverse, records.duration_ns)
    for (device_id, text), count, total_ns in zip(distinct.tolist(), counts, totals_ns):
        if text:
            key = (records.batch.kind, device_id, records.batch.strings[text])
            yield key, int(count), int(total_ns)
