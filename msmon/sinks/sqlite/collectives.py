"""Numbering of collectives so that the same one has the same name on every rank.

msprof-analyze pairs collectives by name, and msMonitor numbers them from the moment a
process began to be monitored, so one collective more or less spoils a whole group.
Where there are step markers, the number is the step and the place within the step. Example: the
fourth collective of a group in step 12 is number 13,000,003 on each rank, even on one that was
monitored from step 11 on.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator

import numpy as np

from msmon.records.batch import Batch, Column
from msmon.records.kinds import MarkerFlag, SourceKind

STEP_NAME = re.compile(r"step[\s_:#=-]*(\d{1,15})$", re.IGNORECASE)
"""Names of step ranges: "step 12", "ProfilerStep#12", "train_step_12"."""

NUMBERS_PER_STEP = 1_000_000

KEPT_STEPS = 4096
"""Latest steps whose starts a session remembers, so that memory is bounded."""

SAVED_STEPS = 16
"""Latest steps that are kept for a restart of the daemon."""

SAVED_GROUPS = 1024
"""Groups whose counts are kept for a restart. A rank belongs to a dozen."""

_LATER_THAN_ANY_STEP = NUMBERS_PER_STEP**3

_STARTS = MarkerFlag.START | MarkerFlag.START_WITH_DEVICE


def step_number(name: str) -> int:
    """Return the step that a marker name stands for, or -1."""
    match = STEP_NAME.search(name)
    return int(match.group(1)) if match else -1


class CollectiveNumbering:
    """Numbers of the collectives of one process, group by group.

    Steps begin with the start records of step markers. Where markers have a device side, its
    records count: a collective runs on the device, maybe long after the host has issued it. Else
    the host's records count.
    """

    def __init__(self, kept_steps: int = KEPT_STEPS) -> None:
        """``kept_steps``: latest steps whose starts are remembered."""
        self._kept_steps = kept_steps
        self._step_of_id: dict[int, int] = {}
        self._host_starts: list[tuple[int, int]] = []
        self._device_starts: list[tuple[int, int]] = []
        self._next_place: dict[str, dict[int, int]] = {}
        """Group → step → next place within it; the latest steps in the order of their arrival.
        Buffers overtake each other, so a collective of an earlier step may come late."""

    def as_json(self) -> str:
        """Return what is needed to go on numbering in another process."""
        return json.dumps(
            [
                [
                    [group, list(places.items())[-SAVED_STEPS:]]
                    for group, places in list(self._next_place.items())[-SAVED_GROUPS:]
                ],
                list(self._step_of_id.items())[-SAVED_STEPS:],
                self._host_starts[-SAVED_STEPS:],
                self._device_starts[-SAVED_STEPS:],
            ]
        )

    def restore(self, text: str) -> None:
        """Go on from ``as_json``, also from that of version 0.1.0.

        There a table holds group → (step, next place), of each group's latest step alone.
        """
        next_place, ids, host, device = json.loads(text)
        if isinstance(next_place, dict):
            next_place = [(group, [latest]) for group, latest in next_place.items()]
        self._next_place = {group: dict(places) for group, places in next_place}
        self._step_of_id = dict(ids)
        self._host_starts = [(time_ns, step) for time_ns, step in host]
        self._device_starts = [(time_ns, step) for time_ns, step in device]

    def add_markers(self, batch: Batch) -> None:
        """Learn the steps that start in a batch of markers.

        Host records go first, for they alone carry the name, and MSPTI promises no order.
        """
        steps = np.array([step_number(text) for text in batch.strings], np.int64)
        if not self._step_of_id and steps.max() < 0:
            return
        starts = batch.records.take(np.flatnonzero((batch.records["flag"] & _STARTS) != 0))
        on_host = starts["source_kind"] == SourceKind.HOST
        host = starts.take(np.flatnonzero(on_host & (steps[starts["name"]] >= 0)))
        for marker_id, time_ns, name in _tuples(host, "id", "timestamp_ns", "name"):
            step = int(steps[name])
            self._step_of_id[marker_id] = step
            self._remember(self._host_starts, time_ns, step)
        device = starts.take(np.flatnonzero(~on_host))
        for marker_id, time_ns in _tuples(device, "id", "timestamp_ns"):
            if marker_id in self._step_of_id:
                self._remember(self._device_starts, time_ns, self._step_of_id[marker_id])
        while len(self._step_of_id) > self._kept_steps:
            del self._step_of_id[next(iter(self._step_of_id))]

    def numbers(self, groups: Iterable[str], start_ns: Iterable[int]) -> list[int]:
        """Return the number of each collective. They must be in the order of their starts.

        Before the first step marker numbers count from 0, as msMonitor's do. In step n they
        count from (n + 1) million. Nothing gets a number twice: what comes late in an earlier step
        counts on there.
        """
        starts = self._device_starts or self._host_starts
        result = []
        for group, time_ns in zip(groups, start_ns):
            place = bisect_right(starts, (time_ns, _LATER_THAN_ANY_STEP)) - 1
            step = starts[place][1] + 1 if place >= 0 else 0
            result.append(step * NUMBERS_PER_STEP + self._place(group, step))
        return result

    def _place(self, group: str, step: int) -> int:
        """Return the next place of a group within a step."""
        places = self._next_place.setdefault(group, {})
        place = places.get(step, 0)
        places[step] = place + 1
        if len(places) > self._kept_steps:
            del places[next(iter(places))]
        return place

    def _remember(self, starts: list[tuple[int, int]], time_ns: int, step: int) -> None:
        insort(starts, (time_ns, step))
        del starts[: -self._kept_steps]


def _tuples(records: Column, *fields: str) -> Iterator[tuple[int, ...]]:
    """Yield fields of records as plain numbers, far faster than row by row."""
    return zip(*(records[field].tolist() for field in fields))
