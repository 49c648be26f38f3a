"""How a device spends its time: with kernels, with communication that no kernel hides, or idle.

Intervals overlap, so they can't be summed: their union is needed, and for that they must be sorted.
To sort every record of a busy job would cost it too much. So only the first records of a window are
looked at, and the window says for how long.
"""

from __future__ import annotations

import numpy as np

from msmon.records.batch import Column
from msmon.records.windows import DEVICE_DTYPE, MAX_DEVICES

MOST_RECORDS = 65_536
"""Records of a window that are looked at, of all devices together: 5 ms of work."""

_SPAN_DTYPE = np.dtype([("start_ns", "<i8"), ("end_ns", "<i8"), ("device_id", "<i8")])


class DeviceTimes:
    """The intervals of the current window. Belongs to one thread."""

    def __init__(self) -> None:
        self._kernels: list[Column] = []
        self._traffic: list[Column] = []
        self._records = 0
        self._until_ns: dict[int, int] = {}
        """Device → until when it was looked at in the window before, without a break."""

    @property
    def has_room(self) -> bool:
        """Whether more records of this window are looked at."""
        return self._records < MOST_RECORDS

    def add(self, start_ns: Column, end_ns: Column, device_id: Column, is_kernel: bool) -> None:
        """Take records with usable times; arrays of shape (n,). More than fit are not looked at."""
        rows = np.empty(min(MOST_RECORDS - self._records, len(start_ns)), _SPAN_DTYPE)
        for name, values in zip(rows.dtype.names or (), (start_ns, end_ns, device_id)):
            rows[name] = values[: len(rows)]
        self._records += len(rows)
        (self._kernels if is_kernel else self._traffic).append(rows)

    def take(self) -> Column:
        """Return a row of ``DEVICE_DTYPE`` per device and begin anew.

        The time between the last record of a window and the first of the next one counts as idle,
        where no record was left out between them.
        """
        kernels, traffic = _joined(self._kernels), _joined(self._traffic)
        is_full = self._records >= MOST_RECORDS
        self._kernels, self._traffic, self._records = [], [], 0
        devices = np.union1d(kernels["device_id"], traffic["device_id"])[:MAX_DEVICES].tolist()
        ends, rows = {}, np.zeros(len(devices), DEVICE_DTYPE)
        for row, device in zip(rows, devices):
            spans = [part[part["device_id"] == device] for part in (kernels, traffic)]
            both = np.concatenate(spans)
            end_ns = int(both["end_ns"].max())
            start_ns = min(self._until_ns.get(device, end_ns), int(both["start_ns"].min()))
            busy, together = union_ns(spans[0], start_ns, end_ns), union_ns(both, start_ns, end_ns)
            idle = end_ns - start_ns - together
            row["device_id"], row["measured_ns"] = device, end_ns - start_ns
            row["busy_ns"], row["exposed_ns"], row["idle_ns"] = busy, together - busy, idle
            ends[device] = end_ns
        self._until_ns = {} if is_full else {**self._until_ns, **ends}
        return rows


def union_ns(spans: Column, start_ns: int, end_ns: int) -> int:
    """Return for how long at least one of the spans ran between two times.

    ``spans`` has fields ``start_ns`` and ``end_ns``, in any order.
    """
    if not len(spans):
        return 0
    spans = spans[np.argsort(spans["start_ns"], kind="stable")]
    end = np.minimum(np.maximum.accumulate(spans["end_ns"]), end_ns)
    begin = np.clip(spans["start_ns"], start_ns, end_ns)
    begin[1:] = np.maximum(begin[1:], end[:-1])
    return int(np.maximum(end - begin, 0).sum())


def _joined(parts: list[Column]) -> Column:
    return np.concatenate([np.zeros(0, _SPAN_DTYPE), *parts])
