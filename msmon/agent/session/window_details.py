"""What a window holds beside its statistics: how devices spent the time, and the collectives of a
step."""

from __future__ import annotations

import dataclasses

import numpy as np

from msmon.agent.session.collective_calls import CollectiveCalls, StepSpan
from msmon.agent.session.device_times import DeviceTimes
from msmon.records.batch import Batch, Column
from msmon.records.collectives import COLLECTIVE_KINDS, is_point_to_point
from msmon.records.durations import Durations, are_spans, durations_of
from msmon.records.kinds import ActivityKind
from msmon.records.windows import DIGEST_DTYPE, Window, cut_name

LONGEST_START_US = 0xFFFFFFFF


class WindowDetails:
    """Belongs to the collector's thread.

    ``whole_devices``: whether all kernels and collectives are recorded. Where a filter leaves some
    out, a device would seem to be idle while it worked.
    """

    def __init__(self) -> None:
        self.whole_devices = False
        self._devices = DeviceTimes()
        self._calls = CollectiveCalls()
        self._calls_kind = ActivityKind.Hccl
        """Communication once there is any: Hccl records the same collectives in another way."""

    def add(self, batch: Batch) -> None:
        """Take the records that the filter has kept."""
        kind = batch.kind
        if kind == ActivityKind.Kernel:
            if self.whole_devices and self._devices.has_room:
                self._add_to_devices(durations_of(batch))
        elif kind in COLLECTIVE_KINDS and len(batch):
            durations = durations_of(batch)
            if kind == ActivityKind.Communication:
                self._calls_kind = kind
                if self.whole_devices and self._devices.has_room:
                    self._add_to_devices(durations)
            if kind == self._calls_kind:
                self._add_to_calls(durations)

    def _add_to_devices(self, durations: Durations) -> None:
        start_ns, end_ns, devices = durations.start_ns, durations.end_ns, durations.device_ids
        assert devices is not None
        timed = are_spans(start_ns, end_ns)
        if not timed.all():
            start_ns, end_ns, devices = start_ns[timed], end_ns[timed], devices[timed]
        self._devices.add(start_ns, end_ns, devices, durations.kind == ActivityKind.Kernel)

    def _add_to_calls(self, durations: Durations) -> None:
        collective = np.array([not is_point_to_point(label[0]) for label in durations.labels], bool)
        chosen = are_spans(durations.start_ns, durations.end_ns) & collective[durations.label_ids]
        self._calls.add(
            durations.start_ns[chosen],
            durations.end_ns[chosen],
            durations.label_ids[chosen],
            durations.labels,
        )

    def add_steps(self, steps: list[StepSpan]) -> None:
        """Take the steps that have ended, in their order."""
        self._calls.add_steps(steps)

    def close(self, window: Window) -> Window:
        """Return the window with its details, and begin anew."""
        devices = self._devices.take()
        step, calls = self._calls.take()
        names = {name: place for place, name in enumerate(window.names)}
        texts = [cut_name(text) for text in self._calls.texts]
        used = np.union1d(calls["group"], calls["operation"])
        places = np.zeros(len(texts), np.int64)
        places[used] = [names.setdefault(texts[text], len(names)) for text in used.tolist()]
        if len(names) > 0xFFFF:
            calls, names = calls[:0], dict.fromkeys(window.names, 0)
        return dataclasses.replace(
            window,
            devices=devices,
            collectives=_digest(calls, places, window.start_ns),
            digest_step=step if len(calls) else -1,
            names=tuple(names),
        )


def _digest(calls: Column, places: Column, window_start_ns: int) -> Column:
    """Return rows of ``DIGEST_DTYPE``; ``places`` are those of the texts in the window's names."""
    rows = np.zeros(len(calls), DIGEST_DTYPE)
    rows["group"], rows["operation"] = places[calls["group"]], places[calls["operation"]]
    rows["size_class"], rows["number"] = calls["size_class"], calls["number"]
    start_us = (calls["start_ns"] - window_start_ns) // 1000
    rows["start_us"] = np.clip(start_us, 0, LONGEST_START_US)
    rows["lasted_ns"] = calls["end_ns"] - calls["start_ns"]
    return rows
