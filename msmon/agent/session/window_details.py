"""What a window holds beside its statistics: how devices spent the time, and the collectives of a
step."""

from __future__ import annotations

import dataclasses

import numpy as np

from msmon.agent.session.collective_calls import CollectiveCalls, StepSpan
from msmon.agent.session.device_times import DeviceTimes
from msmon.records.batch import Column
from msmon.records.durations import Durations, are_spans
from msmon.records.kinds import ActivityKind
from msmon.records.windows import DIGEST_DTYPE, Window

DEVICE_KINDS = frozenset({ActivityKind.Kernel, ActivityKind.Communication})
"""What a device spends its time with."""

LONGEST_START_US = 2**31 - 1


class WindowDetails:
    """Belongs to the collector's thread."""

    def __init__(self) -> None:
        self._devices = DeviceTimes()
        self._devices.most_records = 0
        self._calls = CollectiveCalls()
        self._calls_kind = ActivityKind.Hccl
        """Communication once there is any: Hccl records the same collectives in another way."""

    def look_at_devices(self, records: int) -> None:
        """Look at so many kernels and collectives of each window for the times of devices.

        It must be 0 where not all are recorded: a device would seem idle while it worked.
        """
        self._devices.most_records = records

    def add(self, durations: Durations) -> None:
        """Take the records that the filter has kept."""
        kind = durations.kind
        if kind in DEVICE_KINDS and self._devices.room:
            self._add_to_devices(durations)
        if kind == ActivityKind.Communication and kind != self._calls_kind:
            self._calls_kind = kind
            self._calls.forget()
        if kind == self._calls_kind:
            self._add_to_calls(durations)

    def _add_to_devices(self, durations: Durations) -> None:
        assert durations.device_ids is not None
        first = slice(self._devices.room)
        columns = (durations.start_ns, durations.end_ns, durations.device_ids)
        start_ns, end_ns, devices = (np.ascontiguousarray(column[first]) for column in columns)
        timed = are_spans(start_ns, end_ns)
        if not timed.all():
            start_ns, end_ns, devices = start_ns[timed], end_ns[timed], devices[timed]
        is_kernel = durations.kind == ActivityKind.Kernel
        self._devices.add(start_ns.view(np.int64), end_ns.view(np.int64), devices, is_kernel)

    def _add_to_calls(self, durations: Durations) -> None:
        start_ns, end_ns, label_ids = durations.start_ns, durations.end_ns, durations.label_ids
        timed = are_spans(start_ns, end_ns)
        if not timed.all():
            start_ns, end_ns, label_ids = start_ns[timed], end_ns[timed], label_ids[timed]
        self._calls.add(start_ns, end_ns, label_ids, durations.labels)

    def add_steps(self, steps: list[StepSpan]) -> None:
        """Take the steps that have ended, in their order."""
        self._calls.add_steps(steps)

    def close(self, window: Window) -> Window:
        """Return the window with its details, and begin anew."""
        devices = self._devices.take()
        step, calls = self._calls.take()
        names = {name: place for place, name in enumerate(window.names)}
        texts = list(self._calls.texts)
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
            digest_ns=self._calls.moment_ns if len(calls) else 0,
            names=tuple(names),
        )


def _digest(calls: Column, places: Column, window_start_ns: int) -> Column:
    """Return rows of ``DIGEST_DTYPE``; ``places`` are those of the texts in the window's names."""
    rows = np.zeros(len(calls), DIGEST_DTYPE)
    rows["group"], rows["operation"] = places[calls["group"]], places[calls["operation"]]
    rows["size_class"], rows["number"] = calls["size_class"], calls["number"]
    start_us = (calls["start_ns"] - window_start_ns) // 1000
    rows["start_us"] = np.clip(start_us, -LONGEST_START_US, LONGEST_START_US)
    rows["lasted_ns"] = calls["end_ns"] - calls["start_ns"]
    return rows
