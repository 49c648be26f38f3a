"""How a device spends its time: with kernels, with communication that no kernel hides, or idle.

Intervals overlap, so they can't be summed: their union is needed. To look at every record of a busy
job would cost it too much. So only the first records of a window are looked at, and the window says
for how long.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np

from msmon.records.batch import Column
from msmon.records.windows import DEVICE_DTYPE, MAX_DEVICES

MOST_RECORDS = 65_536
"""Records of a window that are looked at, of all devices together: some 4 ms of work."""

MOST_RECORDS_PER_S = 16_384
"""The same in short windows, per second. A device makes some thousand records per second; where
there are far more, looking at each would cost half of what the statistics cost."""


def most_records(window_s: float) -> int:
    """Return how many records of a window of this length are looked at."""
    return min(MOST_RECORDS, int(MOST_RECORDS_PER_S * max(window_s, 0.1)))


@dataclass
class _Spans:
    """Starts and ends of what one device did, as int64 arrays of shape (n,), in parts."""

    starts_ns: list[Column] = field(default_factory=list)
    ends_ns: list[Column] = field(default_factory=list)

    def append(self, start_ns: Column, end_ns: Column) -> None:
        """Add a part."""
        self.starts_ns.append(start_ns)
        self.ends_ns.append(end_ns)

    def union(self) -> Union:
        """Return the time in which at least one of them ran."""
        none = np.zeros(0, np.int64)
        return Union(np.concatenate([none, *self.starts_ns]), np.concatenate([none, *self.ends_ns]))


class DeviceTimes:
    """The intervals of the current window. Belongs to one thread."""

    def __init__(self) -> None:
        self.most_records = MOST_RECORDS
        self._kernels: dict[int, _Spans] = {}
        self._traffic: dict[int, _Spans] = {}
        self._records = 0
        self._until_ns: dict[int, int] = {}
        """Device → until when it was looked at in the window before, without a break."""

    @property
    def room(self) -> int:
        """How many more records of this window are looked at."""
        return max(0, self.most_records - self._records)

    def add(self, start_ns: Column, end_ns: Column, device_id: Column, is_kernel: bool) -> None:
        """Take records with usable times; arrays of shape (n,), times in int64.

        More than there is room for are not looked at.
        """
        first = slice(self.room)
        start_ns, end_ns, device_id = start_ns[first], end_ns[first], device_id[first]
        if not len(start_ns):
            return
        self._records += len(start_ns)
        spans_of = self._kernels if is_kernel else self._traffic
        if (device_id == device_id[0]).all():
            spans_of.setdefault(int(device_id[0]), _Spans()).append(start_ns, end_ns)
            return
        for device in np.unique(device_id).tolist():
            mine = device_id == device
            spans_of.setdefault(device, _Spans()).append(start_ns[mine], end_ns[mine])

    def take(self) -> Column:
        """Return a row of ``DEVICE_DTYPE`` per device and begin anew.

        The time between the last record of a window and the first of the next one counts as idle,
        where no record was left out between them.
        """
        kernels, traffic = self._kernels, self._traffic
        is_full = not self.room
        self._kernels, self._traffic, self._records = {}, {}, 0
        devices = sorted(kernels.keys() | traffic.keys())[:MAX_DEVICES]
        ends, rows = {}, np.zeros(len(devices), DEVICE_DTYPE)
        for row, device in zip(rows, devices):
            work = kernels.get(device, _Spans()).union()
            talk = traffic.get(device, _Spans()).union()
            seen = [union for union in (work, talk) if len(union)]
            end_ns = max(union.end_ns for union in seen)
            start_ns = min(union.start_ns for union in seen)
            start_ns = min(start_ns, self._until_ns.get(device, start_ns))
            exposed_ns = talk.total_ns - work.common_ns(talk)
            row["device_id"], row["measured_ns"] = device, end_ns - start_ns
            row["busy_ns"], row["exposed_ns"] = work.total_ns, exposed_ns
            row["idle_ns"] = end_ns - start_ns - work.total_ns - exposed_ns
            ends[device] = end_ns
        self._until_ns = {} if is_full else {**self._until_ns, **ends}
        return rows


class Union:
    """The time in which at least one of some spans ran."""

    def __init__(self, start_ns: Column, end_ns: Column) -> None:
        """``start_ns`` and ``end_ns``: int64, shape (n,), in any order."""
        if not (start_ns[1:] >= start_ns[:-1]).all():  # those of one stream are in order
            order = np.argsort(start_ns, kind="stable")
            start_ns, end_ns = start_ns[order], end_ns[order]
        self._starts_ns = start_ns
        self._ends_ns = np.maximum.accumulate(end_ns)
        """When each span and all before it are over."""

    def __len__(self) -> int:
        return len(self._starts_ns)

    @property
    def start_ns(self) -> int:
        """When the first one begins. There must be one."""
        return int(self._starts_ns[0])

    @property
    def end_ns(self) -> int:
        """When the last one is over. There must be one."""
        return int(self._ends_ns[-1])

    @functools.cached_property
    def _covered_ns(self) -> Column:
        """How long the first spans ran together, shape (n + 1,): none of them, one, two, …"""
        covered = np.zeros(len(self) + 1, np.int64)
        if len(self):
            # in place: memory that is taken anew costs as much as the sums
            without_gaps, gaps = covered[1:], covered[2:]
            np.subtract(self._starts_ns[1:], self._ends_ns[:-1], out=gaps)
            np.maximum(gaps, 0, out=gaps)
            np.cumsum(without_gaps, out=without_gaps)
            np.subtract(self._ends_ns, without_gaps, out=without_gaps)
            without_gaps -= self.start_ns
        return covered

    @property
    def total_ns(self) -> int:
        """How long it is."""
        return int(self._covered_ns[-1])

    def until(self, times_ns: Column) -> Column:
        """Return how much of it lies before each of these times (int64, shape (m,))."""
        begun = np.searchsorted(self._starts_ns, times_ns)
        last = np.maximum(begun - 1, 0)
        left = np.maximum(self._ends_ns[last] - times_ns, 0) if len(self) else 0
        before: Column = self._covered_ns[begun] - np.where(begun > 0, left, 0)
        return before

    def common_ns(self, other: Union) -> int:
        """Return how long spans of both ran at once."""
        if not len(self) or not len(other):
            return 0
        begin = other._starts_ns.copy()
        np.maximum(begin[1:], other._ends_ns[:-1], out=begin[1:])
        end = np.maximum(begin, other._ends_ns)
        return int((self.until(end) - self.until(begin)).sum())
