"""Windows: statistics of one report interval, per kind, device and operator.

A window is columns, small and self-contained, so that it can travel, be merged
with windows of other intervals or ranks, and still answer quantiles.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from msmon.records.batch import Column
from msmon.records.kinds import ActivityKind
from msmon.records.window_header import WindowHeader

OPERATOR_DTYPE = np.dtype(
    [
        ("kind", "<u4"),
        ("device_id", "<i8"),
        ("name", "<u4"),
        ("domain", "<u4"),
        ("count", "<u8"),
        ("total_ns", "<u8"),
        ("min_ns", "<u8"),
        ("max_ns", "<u8"),
        ("size_class", "<u4"),
    ]
)
"""One row per (kind, device, name, domain, size class). device_id is -1 for the host; name and
domain index ``Window.names``. The domain is that of a marker, and the communicator of a collective,
whose size class is log2 of its bytes (0: unknown). Elsewhere they are the empty text and 0."""

BUCKET_DTYPE = np.dtype([("operator", "<u4"), ("bucket", "<u2"), ("count", "<u8")])
"""One row per non-empty histogram bucket of an operator (an index into ``operators``)."""

DEVICE_DTYPE = np.dtype(
    [
        ("device_id", "<i8"),
        ("measured_ns", "<u8"),
        ("busy_ns", "<u8"),
        ("exposed_ns", "<u8"),
        ("idle_ns", "<u8"),
    ]
)
"""One row per device: how it spent ``measured_ns`` of the window. It was busy with kernels, with
communication that no kernel hid (exposed), or idle; the three add up to what was measured."""

DIGEST_DTYPE = np.dtype(
    [
        ("group", "<u2"),
        ("operation", "<u2"),
        ("size_class", "u1"),
        ("reserved", "u1"),
        ("number", "<u4"),
        ("start_us", "<i4"),
        ("lasted_ns", "<f4"),
        ("reserved_2", "<u2"),
    ]
)
"""One row per collective of one step: communicator and operation (they index ``Window.names``), its
number among those of the communicator since the session began, and when it started, counted from
the start of the window; it may have been before. Half an hour at most, either way."""

MAX_COLLECTIVES = 4096
"""Rows of ``DIGEST_DTYPE`` that a daemon takes. An agent sends at most 512."""

MAX_DEVICES = 64
"""Rows of ``DEVICE_DTYPE`` that a daemon takes. A node has 16 devices."""

MAX_ROWS = 20_000
"""Operators of a window that a daemon takes. An agent sends at most 1,000 names per kind."""

MAX_NAMES = 2 * MAX_ROWS + 1
"""Texts of such a window: each row may have a name and a domain of its own, and one is empty."""

MAX_NAME_CHARACTERS = 4096
"""Longest name that a window of another process keeps. Many rows may share a name, and outputs
write it once for each row."""

MAX_WINDOW_BYTES = 8 << 20
"""Frames of such a window, all together. Some 400 bytes each for 1,000 names of a kind are 2 MiB
in a large job."""

CUT_MARK = "…"
"""Last character of a name that was cut."""

OTHER_NAME = "other"
"""Name under which operators beyond the cap of a window are summed."""

SUB_BUCKETS_PER_OCTAVE = 8
"""Buckets are log-linear: exponent and top three mantissa bits of the duration as float64, so a
bucket is at most 1/8 wider than its lower bound and its middle off by 1/16 (6.3 %) at most."""

_BUCKET_SHIFT = np.int64(52 - 3)

ZERO_BUCKET = 1023 * SUB_BUCKETS_PER_OCTAVE - 1
"""Bucket of the duration 0, right below that of 1 ns (the float's own would be 0, far away)."""


def bucket_of(durations_ns: Column) -> Column:
    """Return the bucket numbers (uint16, shape (n,)) of whole durations in ns (>= 0)."""
    return buckets_of_floats(durations_ns.astype(np.float64)).astype(np.uint16)


def buckets_of_floats(durations_ns: Column) -> Column:
    """Return the same bucket numbers as int64, from durations that are float64 already."""
    buckets: Column = durations_ns.view(np.int64) >> _BUCKET_SHIFT
    return np.maximum(buckets, ZERO_BUCKET, out=buckets)


def bucket_bounds_ns(bucket: int) -> tuple[float, float]:
    """Return the lower (inclusive) and upper (exclusive) duration of a bucket in ns."""
    edges = np.array([bucket, bucket + 1], dtype=np.int64) << _BUCKET_SHIFT
    low, high = edges.view(np.float64).tolist()
    return (0.0, high) if bucket <= ZERO_BUCKET else (low, high)


@dataclass(frozen=True)
class Window(WindowHeader):
    """Statistics of one interval of one session: a header and columns, each of shape (n,).

    ``operators`` has dtype ``OPERATOR_DTYPE``, ``buckets`` ``BUCKET_DTYPE``, ``devices``
    ``DEVICE_DTYPE`` and ``collectives`` ``DIGEST_DTYPE``. :mod:`msmon.records.window_frames` turns
    it into bytes and back.
    """

    operators: Column = field(default_factory=lambda: np.zeros(0, OPERATOR_DTYPE))
    buckets: Column = field(default_factory=lambda: np.zeros(0, BUCKET_DTYPE))
    names: tuple[str, ...] = ("",)
    devices: Column = field(default_factory=lambda: np.zeros(0, DEVICE_DTYPE))
    collectives: Column = field(default_factory=lambda: np.zeros(0, DIGEST_DTYPE))


def cut_name(name: str) -> str:
    """Return a name that is no longer than a window keeps."""
    if len(name) <= MAX_NAME_CHARACTERS:
        return name
    return name[: MAX_NAME_CHARACTERS - len(CUT_MARK)] + CUT_MARK


def bucket_rows(operator: Column, bucket: Column, count: Column) -> Column:
    """Return rows of ``BUCKET_DTYPE`` from their columns, each of shape (n,)."""
    rows = np.zeros(len(operator), BUCKET_DTYPE)
    rows["operator"] = operator
    rows["bucket"] = bucket
    rows["count"] = count
    return rows


@dataclass(frozen=True)
class OperatorRow:
    """One operator of a window in words; ``index`` is its row in ``Window.operators``."""

    index: int
    kind: ActivityKind
    device_id: int
    name: str
    domain: str
    count: int
    total_ns: int
    min_ns: int
    max_ns: int
    size_class: int = 0

    @property
    def mean_ns(self) -> float:
        """Mean duration in ns."""
        return self.total_ns / self.count if self.count else 0.0


def operator_rows(window: Window) -> list[OperatorRow]:
    """Return the operators of a window in its order."""
    names = window.names
    return [
        OperatorRow(index, ActivityKind(kind), device, names[name], names[domain], *numbers)
        for index, (kind, device, name, domain, *numbers) in enumerate(window.operators.tolist())
    ]


def quantile_ns(window: Window, operator_index: int, q: float) -> float:
    """Return the ``q`` quantile (0 to 1) of an operator's durations in ns.

    It is the middle of the bucket that holds the record of that rank, within the
    operator's minimum and maximum: off by 6.3 % at most. Without records it is 0.
    """
    operator = window.operators[operator_index]
    low, high = int(operator["min_ns"]), int(operator["max_ns"])
    if q <= 0 or q >= 1:
        return float(low if q <= 0 else high)
    owners = window.buckets["operator"]
    first = bisect_left(owners, operator_index)
    mine = window.buckets[first : bisect_left(owners, operator_index + 1, first)]
    if not len(mine):
        return 0.0
    ranks = np.cumsum(mine["count"])
    place = int(np.searchsorted(ranks, np.ceil(q * int(ranks[-1]))))
    lower, upper = bucket_bounds_ns(int(mine["bucket"][place]))
    middle = (lower + upper) / 2 if lower else 0.0
    return min(max(middle, low), high)
