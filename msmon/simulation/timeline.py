"""When one simulated step happens on host and device, and the form of its records.

Times count from the step's origin, correlation and marker ids from 1. The host runs ahead
of the device: it launches each kernel a little before the kernel starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from msmon.records.batch import Batch, Column
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.settings.simulation import SimulatedRank, SimulationOptions
from msmon.simulation.workload import DEVICE_START, Schedule, StepPlan, schedule_step

COMPUTE_STREAM = 2
COMMUNICATION_STREAM = 5
HOST_START = 0.02
"""Share of the step after which the host launches the first kernel."""
HOST_PACE = 0.95
"""Host time that passes per device time, so that the host stays ahead."""


@dataclass(frozen=True)
class StepRecords:
    """Records of one kind of one step, every array of shape (n,).

    ``event_text`` (an id into the batch's strings) is the name under which a record counts
    in operator totals, with ``duration_ns`` and ``device_id`` (-1: host); 0 for a record
    without a name, as the start of a range: its end counts. ``domain_text`` is the domain of
    the range that a marker belongs to.
    """

    batch: Batch
    event_text: Column
    domain_text: Column
    duration_ns: Column
    device_id: Column

    @classmethod
    def timed(cls, batch: Batch, device_id: int, event_text: Column | None = None) -> StepRecords:
        """Wrap records that have a start and an end."""
        count = len(batch)
        nothing = np.zeros(count, dtype=np.uint64)
        return cls(
            batch,
            event_text=nothing if event_text is None else event_text,
            domain_text=nothing,
            duration_ns=(batch.records["end_ns"] - batch.records["start_ns"]).astype(np.int64),
            device_id=np.full(count, device_id, dtype=np.int64),
        )


class TextIds:
    """Strings of one batch, numbered from 1; 0 is the empty text."""

    def __init__(self) -> None:
        self._ids = {"": 0}

    def id(self, text: str) -> int:
        """Return the number of a text, a new one for a new text."""
        return self._ids.setdefault(text, len(self._ids))

    def ids(self, texts: Iterable[str]) -> Column:
        """Return the numbers of texts, dtype uint64."""
        numbers: Column = np.array([self.id(text) for text in texts], dtype=np.uint64)
        return numbers

    @property
    def strings(self) -> tuple[str, ...]:
        """The texts in the order of their numbers."""
        return tuple(self._ids)


def empty_records(kind: ActivityKind, count: int) -> Column:
    """Return ``count`` zeroed records of a kind."""
    records: Column = np.zeros(count, dtype=DTYPES[kind])
    records["kind"] = kind
    return records


class Timeline:
    """One variant of the step on one rank: schedule, host times, correlation ids."""

    def __init__(
        self,
        plan: StepPlan,
        options: SimulationOptions,
        rank: SimulatedRank,
        variant: int,
        process_id: int,
        faulty: bool = True,
    ) -> None:
        """``faulty``: what the options say is slow, is slow."""
        self.plan = plan
        self.step_ns = options.step_ns
        self.schedule: Schedule = schedule_step(plan, options, rank, variant, faulty)
        self.device_id = rank.local_rank
        self.process_id = process_id
        kernels = len(self.schedule.kernel_start_ns)
        launched_ns = np.concatenate(
            (self.schedule.kernel_start_ns, self.schedule.collective_start_ns)
        )
        ids = np.empty(len(launched_ns), dtype=np.uint64)
        ids[np.argsort(launched_ns, kind="stable")] = np.arange(1, len(ids) + 1, dtype=np.uint64)
        self.kernel_correlation_ids: Column = ids[:kernels]
        self.collective_correlation_ids: Column = ids[kernels:]

    def host_ns(self, device_ns: Column) -> Column:
        """Return when the host launched what starts at ``device_ns``, dtype int64."""
        ahead = device_ns - DEVICE_START * self.step_ns
        host_ns: Column = (HOST_START * self.step_ns + HOST_PACE * ahead).astype(np.int64)
        return host_ns

    def extra_correlation_ids(self, first: int, count: int) -> Column:
        """Return ids after those of kernels and collectives, dtype uint64."""
        begin = len(self.kernel_correlation_ids) + len(self.collective_correlation_ids) + 1 + first
        ids: Column = np.arange(begin, begin + count, dtype=np.uint64)
        return ids

    def forward_host_ns(self) -> tuple[Column, Column]:
        """Return when the host begins and ends each micro batch's forward, int64."""
        forward = [phase for phase in self.plan.phases if phase.name == "forward"]
        starts_ns = self.schedule.kernel_start_ns[[phase.first for phase in forward]]
        ends_ns = self.schedule.kernel_end_ns[[phase.last for phase in forward]]
        return self.host_ns(starts_ns), self.host_ns(ends_ns)
