"""Records per second from a raw activity buffer to window statistics.

Measures how msmon decodes, filters and aggregates (count, total, minimum, maximum and histogram
per operator). The baseline is a loop that reads one ctypes structure per record and adds to a
dict. Both run on the same buffers in the same run, and must give equal results.

    python benchmarks/decode.py
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from msmon.ffi.decode import decode
from msmon.records.dtypes import DTYPES
from msmon.records.durations import MEMSET_NAME
from msmon.records.filter import Filter
from msmon.records.kinds import ActivityKind, MemcpyKind, MemoryOperation
from msmon.records.layout import API_KINDS, LAYOUTS, TEXT_FIELDS
from msmon.records.record_filter import RecordFilter
from msmon.records.statistics.window_statistics import WindowStatistics
from msmon.records.windows import operator_rows

VALID_BYTES = 8 * 1024 * 1024 * 8 // 10
"""MSPTI completes an 8 MiB buffer when it is 80 % full."""

DISTINCT_NAMES = 200
BUFFERS_PER_WINDOW = 20
REPETITIONS = 7
FILTER = "Kernel:MatMul,Softmax"
MIXED_RUN_LENGTH = 1.5

CTYPES = {
    "<u4": ctypes.c_uint32,
    "<u8": ctypes.c_uint64,
    "<f8": ctypes.c_double,
    "u1": ctypes.c_uint8,
}


# --- buffers ----------------------------------------------------------------------------------


class Buffers:
    """Makes buffers as MSPTI fills them, and keeps alive the strings that they point to."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(7)
        stems = ("MatMul", "Softmax", "LayerNorm", "Add", "Cast", "Transpose", "GeluGrad", "Adam")
        names = [f"aclnn{stems[i % 8]}_{stems[i % 8]}_{i}" for i in range(DISTINCT_NAMES)]
        self._names = [ctypes.create_string_buffer(name.encode()) for name in names]
        kinds = ("KERNEL_AICORE", "KERNEL_AIVEC", "KERNEL_MIX_AIC", "KERNEL_AICPU")
        self._types = [ctypes.create_string_buffer(kind.encode()) for kind in kinds]
        ranges = (f"{part} {stem}" for part in ("forward", "backward") for stem in stems)
        self._ranges = [ctypes.create_string_buffer(name.encode()) for name in ranges]
        self._empty = ctypes.create_string_buffer(b"")
        self._next_marker = 1

    def _pointers(self, strings: list, count: int) -> np.ndarray:
        addresses = np.array([ctypes.addressof(item) for item in strings], np.uint64)
        shares = 1 / np.arange(1, len(strings) + 1)  # A few operators make most of the records.
        return self._random.choice(addresses, count, p=shares / shares.sum())

    def records(self, kind: ActivityKind, count: int) -> np.ndarray:
        records = np.zeros(count, DTYPES[kind])
        records["kind"] = kind
        if kind == ActivityKind.Marker:
            self._fill_markers(records)
            return records
        for field in TEXT_FIELDS[kind]:
            strings = self._names if field == "name" else self._types
            records[field] = self._pointers(strings, count)
        if "start_ns" in records.dtype.names:
            start_ns = 1_700_000_000_000_000_000 + np.arange(count, dtype=np.uint64) * 5_000
            records["start_ns"] = start_ns
            records["end_ns"] = start_ns + self._random.lognormal(9, 1.5, count).astype(np.uint64)
        return records

    def _fill_markers(self, records: np.ndarray) -> None:
        """Fill a buffer with ranges on the host: start and end in turn."""
        count = len(records)
        records["id"] = self._next_marker + np.arange(count) // 2
        self._next_marker += count
        records["flag"] = np.where(np.arange(count) % 2, 4, 2)
        records["timestamp_ns"] = 1_700_000_000_000_000_000 + np.arange(count) * 4_000
        is_start = records["flag"] == 2
        records["name"] = ctypes.addressof(self._empty)
        records["domain"] = ctypes.addressof(self._empty)
        records["name"][is_start] = self._pointers(self._ranges, int(is_start.sum()))

    def pure(self) -> np.ndarray:
        count = VALID_BYTES // DTYPES[ActivityKind.Kernel].itemsize
        return self.records(ActivityKind.Kernel, count).view(np.uint8)

    def mixed(self) -> np.ndarray:
        """Return a buffer with all kinds, in runs of MIXED_RUN_LENGTH records on average."""
        kinds = list(ActivityKind)
        sizes = {kind: DTYPES[kind].itemsize for kind in kinds}
        total = int(VALID_BYTES / (sum(sizes.values()) / len(kinds)))
        order = []
        while len(order) < total:
            kind = kinds[int(self._random.integers(len(kinds)))]
            if not order or order[-1] != kind:
                order += [kind] * int(self._random.geometric(1 / MIXED_RUN_LENGTH))
        parts = {
            kind: iter(np.split(self.records(kind, number).view(np.uint8), number))
            for kind in kinds
            if (number := order.count(kind))
        }
        return np.concatenate([next(parts[kind]) for kind in order])


# --- msmon ------------------------------------------------------------------------------------


def by_columns(buffers: list[np.ndarray], filter_text: str) -> dict:
    """Decode, filter and aggregate with msmon; return the operators of the window."""
    record_filter = RecordFilter(Filter.parse(filter_text))
    statistics = WindowStatistics()
    for data in buffers:
        for batch in decode(data).batches:
            statistics.add(record_filter.apply(batch), received=len(batch))
    window = statistics.close(0, 0, 0)
    return {
        (row.kind, row.device_id, row.name): [row.count, row.total_ns, row.min_ns, row.max_ns]
        for row in operator_rows(window)
    }


# --- the plain loop ---------------------------------------------------------------------------


def structure_of(kind: ActivityKind) -> type[ctypes.Structure]:
    fields = [
        (name, ctypes.c_char_p if name in TEXT_FIELDS[kind] else CTYPES[code])
        for name, code in LAYOUTS[kind].c_fields
    ]
    return type(kind.name, (ctypes.Structure,), {"_pack_": 1, "_layout_": "ms", "_fields_": fields})


def name_of(kind: ActivityKind, record: ctypes.Structure) -> str:
    if kind == ActivityKind.Memory:
        return MemoryOperation(record.operation).name
    if kind == ActivityKind.MemCpy:
        return MemcpyKind(record.copy_kind).name
    if kind == ActivityKind.MemSet:
        return MEMSET_NAME
    return record.name.decode()


def by_records(buffers: list[np.ndarray], filter_text: str) -> dict:
    """Do the same as :func:`by_columns` with one ctypes structure per record."""
    structures = {int(kind): (kind, structure_of(kind)) for kind in ActivityKind}
    sizes = {int(kind): DTYPES[kind].itemsize for kind in ActivityKind}
    needles = Filter.parse(filter_text).needles
    operators: dict = {}
    open_ranges: dict = {}
    for data in buffers:
        position, end = data.ctypes.data, data.ctypes.data + len(data)
        while position < end:
            number = ctypes.c_uint32.from_address(position).value
            kind, structure = structures[number]
            record = structure.from_address(position)
            position += sizes[number]
            if kind == ActivityKind.ExternalCorrelation:
                continue
            if kind == ActivityKind.Marker:
                if record.flag == 2:
                    open_ranges[record.id] = (record.timestamp_ns, record.name.decode())
                    continue
                start_ns, name = open_ranges.pop(record.id)
                duration_ns, device = record.timestamp_ns - start_ns, -1
            else:
                duration_ns = record.end_ns - record.start_ns
                name = name_of(kind, record)
                device = -1 if kind in API_KINDS else record.device_id
            if needles and not any(needle in name for needle in needles.get(kind, ())):
                continue
            key = (kind, device, name)
            operator = operators.get(key)
            if operator is None:
                operator = operators[key] = [0, 0, duration_ns, duration_ns, {}]
            operator[0] += 1
            operator[1] += duration_ns
            operator[2] = min(operator[2], duration_ns)
            operator[3] = max(operator[3], duration_ns)
            bucket = duration_ns.bit_length()
            operator[4][bucket] = operator[4].get(bucket, 0) + 1
    return {key: operator[:4] for key, operator in operators.items()}


# --- comparison -------------------------------------------------------------------------------


def records_in(data: np.ndarray) -> int:
    return sum(len(batch) for batch in decode(data).batches)


def cpu_seconds(run: Callable[[], object]) -> float:
    """Return the CPU time of this thread, which other work on the machine changes little."""
    begin = time.thread_time()
    run()
    return time.thread_time() - begin


def compare(data: np.ndarray, filter_text: str) -> tuple[float, float]:
    """Return (records/s of msmon, records/s of the plain loop): the best of alternating runs."""
    if by_columns([data], filter_text) != by_records([data], filter_text):
        raise SystemExit("the two decoders disagree")
    window = [data] * BUFFERS_PER_WINDOW
    count = records_in(data)
    columns_s, records_s = [], []
    for _ in range(REPETITIONS):
        columns_s.append(cpu_seconds(lambda: by_columns(window, filter_text)) / len(window))
        records_s.append(cpu_seconds(lambda: by_records([data], filter_text)))
    return count / min(columns_s), count / min(records_s)


def main() -> None:
    buffers = Buffers()
    pure, mixed = buffers.pure(), buffers.mixed()
    cases = {"pure": (pure, ""), "filtered": (pure, FILTER), "mixed": (mixed, "")}
    print(
        f"{VALID_BYTES / 2**20:.1f} MiB per buffer, {DISTINCT_NAMES} names, records/s of CPU time"
    )
    print(f"{'case':<10}{'records':>10}{'msmon':>16}{'plain loop':>16}{'ratio':>8}")
    ratios = {}
    for name, (data, filter_text) in cases.items():
        columns, records = compare(data, filter_text)
        ratios[name] = columns / records
        count = records_in(data)
        print(f"{name:<10}{count:>10,}{columns:>16,.0f}{records:>16,.0f}{ratios[name]:>8.1f}")
    for name, ratio in ratios.items():
        print(f"RATIO {name} {ratio:.1f}")


if __name__ == "__main__":
    main()
