"""Splitting a buffer of mixed activity records into one array per kind.

A record begins with its kind, and the kind tells its size; nothing else is needed to walk a
buffer. Doing that record by record in Python costs more than all other decoding, so machine code
(``assembly/walk_*.S``) walks it twice where the CPU is one that it exists for: ``count`` tells
how many records of each kind there are, and ``gather`` copies each behind the last one of its
kind, into memory of just that size::

    buffer              API, Kernel, API, Marker, Kernel
    count               Marker 1, Kernel 2, API 2
    gather              Marker | Kernel, Kernel | API, API

A buffer of one kind alone needs no copy.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from msmon.errors import NativeCodeUnavailable
from msmon.ffi import machine_code
from msmon.ffi.executable import map_code
from msmon.records.batch import Column
from msmon.records.dtypes import DTYPES, RECORD_ALIGNMENT_BYTES
from msmon.records.kinds import ActivityKind

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_SIZES = np.zeros(max(DTYPES) + 1, np.uint64)
for _kind, _dtype in DTYPES.items():
    _SIZES[_kind] = _dtype.itemsize
_KIND_BYTES = 4
_RUN_LIMIT = 1024
"""Records looked at for one run. Without it, finding the end of a run of two records would
compare the kinds of all records behind it, and a mixed buffer would cost its length squared."""


@dataclass(frozen=True)
class Split:
    """Records of a buffer by kind.

    ``parts`` holds structured arrays of ``DTYPES[kind]``, in recorded order; text fields still
    hold pointers. An array may be a view into the buffer or its own memory. ``read_bytes``
    were understood; what follows is cut off, or begins with a kind that is ``unknown_kind``.
    """

    parts: dict[ActivityKind, Column]
    read_bytes: int
    unknown_kind: int | None


def split(data: Bytes) -> Split:
    """Split the valid bytes of a buffer, shape (n,), into arrays per kind."""
    data = np.ascontiguousarray(data)
    routines = _native_routines()
    if routines is None:
        return split_in_python(data)
    counts = np.zeros(len(_SIZES), np.uint64)
    read_bytes = routines.count(
        data.ctypes.data, len(data), _SIZES.ctypes.data, counts.ctypes.data, len(_SIZES)
    )
    present = {ActivityKind(kind): int(counts[kind]) for kind in np.flatnonzero(counts).tolist()}
    unknown_kind = _unknown_kind(data, read_bytes)
    if len(present) == 1:
        (kind,) = present
        return Split({kind: data[:read_bytes].view(DTYPES[kind])}, read_bytes, unknown_kind)
    parts = {}
    outputs = np.zeros(len(_SIZES), np.uint64)
    for kind, count in present.items():
        size = count * DTYPES[kind].itemsize
        memory = np.empty(size + machine_code.GATHER_SLACK_BYTES, np.uint8)
        outputs[kind] = memory.ctypes.data
        parts[kind] = memory[:size].view(DTYPES[kind])
    routines.gather(data.ctypes.data, read_bytes, _SIZES.ctypes.data, outputs.ctypes.data)
    return Split(parts, read_bytes, unknown_kind)


def split_in_python(data: Bytes) -> Split:
    """Do the same as :func:`split` on any CPU: run by run, then one copy per kind."""
    data = np.ascontiguousarray(data)
    runs: dict[ActivityKind, list[Bytes]] = {}
    position = 0
    while (kind := _whole_record_kind(data, position)) is not None:
        run = data[position : position + _run_bytes(data, position, DTYPES[kind])]
        runs.setdefault(kind, []).append(run)
        position += len(run)
    parts = {kind: np.concatenate(runs[kind]).view(DTYPES[kind]) for kind in sorted(runs)}
    return Split(parts, position, _unknown_kind(data, position))


def _run_bytes(data: Bytes, position: int, dtype: np.dtype[Any]) -> int:
    """Return the length of the run of whole records that begins here, up to a limit."""
    count = min((len(data) - position) // dtype.itemsize, _RUN_LIMIT)
    kinds = data[position : position + count * dtype.itemsize].view(dtype)["kind"]
    others = np.flatnonzero(kinds != kinds[0])
    return dtype.itemsize * (int(others[0]) if len(others) else count)


def _kind_at(data: Bytes, position: int) -> int | None:
    word = data[position : position + _KIND_BYTES]
    return int.from_bytes(word.tobytes(), "little") if len(word) == _KIND_BYTES else None


def _whole_record_kind(data: Bytes, position: int) -> ActivityKind | None:
    number = _kind_at(data, position)
    if number is None or number not in DTYPES:
        return None
    kind = ActivityKind(number)
    return kind if position + DTYPES[kind].itemsize <= len(data) else None


def _unknown_kind(data: Bytes, position: int) -> int | None:
    number = _kind_at(data, position)
    return number if number is not None and number not in DTYPES else None


@dataclass(frozen=True)
class _Routines:
    count: Callable[[int, int, int, int, int], int]
    gather: Callable[[int, int, int, int], None]


@functools.cache
def _native_routines() -> _Routines | None:
    code = machine_code.WALK.get(os.uname().machine)
    fits = all(
        size % RECORD_ALIGNMENT_BYTES == 0 and size <= machine_code.GATHER_SLACK_BYTES
        for size in _SIZES.tolist()
    )
    if code is None or not fits:
        return None
    try:
        base = map_code(code)
    except NativeCodeUnavailable:
        return None
    word = ctypes.c_uint64
    count = ctypes.CFUNCTYPE(word, word, word, word, word, word)
    gather = ctypes.CFUNCTYPE(None, word, word, word, word)
    return _Routines(
        count(base + machine_code.COUNT_OFFSET), gather(base + machine_code.GATHER_OFFSET)
    )
