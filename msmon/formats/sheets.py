"""What each sheet of a workbook holds: columns per activity kind.

Names and order of the columns of API, Kernel, Communication and Marker sheets are
msMonitor's; the other kinds follow the same manner. A column turns whole
arrays into Python values: times become :class:`Microseconds` so that nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from msmon.records.batch import Column, printable
from msmon.records.kinds import (
    API_KINDS,
    ActivityKind,
    CommunicationDataType,
    MemcpyKind,
    MemoryKind,
    MemoryOperation,
    SourceKind,
)

Cells = Sequence[Any]
"""Values of one column: str, int, float, or Microseconds."""

Values = Callable[[Column, Sequence[str]], Cells]
"""Takes records of one kind (or marker events) and the texts that their text fields index."""


class Microseconds(int):
    """A time or duration in ns that a sheet shows in µs."""


@dataclass(frozen=True)
class SheetColumn:
    """A header, and how its values come out of records or marker events."""

    header: str
    values: Values


def _number(field: str) -> Values:
    """Plain values of a number field."""
    return lambda records, strings: records[field].tolist()


def _time(field: str) -> Values:
    """A field in ns, shown in µs."""
    return lambda records, strings: [Microseconds(value) for value in records[field].tolist()]


def _text(field: str) -> Values:
    """A text field."""

    def values(records: Column, strings: Sequence[str]) -> Cells:
        texts = [printable(item) for item in strings]
        return [texts[index] for index in records[field].tolist()]

    return values


def _member(field: str, enumeration: Any) -> Values:
    """A field shown as the name of an enumeration's member, or as a number when unknown."""
    names = {item.value: item.name for item in enumeration}
    return lambda records, strings: [names.get(value, value) for value in records[field].tolist()]


def _duration(records: Column, strings: Sequence[str]) -> Cells:
    """End minus start, in ns shown as µs; computed from integers, may be negative."""
    starts, ends = records["start_ns"].tolist(), records["end_ns"].tolist()
    return [Microseconds(end - start) for start, end in zip(starts, ends)]


def _data_type(records: Column, strings: Sequence[str]) -> Cells:
    names = {item.value: item.name for item in CommunicationDataType}
    unknown = CommunicationDataType.INVALID_TYPE.name
    return [names.get(value, unknown) for value in records["data_type"].tolist()]


_START = SheetColumn("Start(us)", _time("start_ns"))
_END = SheetColumn("End(us)", _time("end_ns"))
_DEVICE = SheetColumn("Device ID", _number("device_id"))
_STREAM = SheetColumn("Stream ID", _number("stream_id"))
_CORRELATION = SheetColumn("Correlation ID", _number("correlation_id"))
_DURATION = SheetColumn("Duration(us)", _duration)
_NAME = SheetColumn("Name", _text("name"))

_API_SHEET = (
    _NAME,
    _START,
    _END,
    SheetColumn("Pid", _number("process_id")),
    SheetColumn("Tid", _number("thread_id")),
    _CORRELATION,
    _DURATION,
)
_TRANSFER_TAIL = (
    SheetColumn("Size(B)", _number("size_bytes")),
    _START,
    _END,
    _DEVICE,
    _STREAM,
    _CORRELATION,
    SheetColumn("Async", _number("is_async")),
    _DURATION,
)

BATCH_SHEETS: dict[ActivityKind, tuple[SheetColumn, ...]] = {
    **dict.fromkeys(sorted(API_KINDS), _API_SHEET),
    ActivityKind.Kernel: (
        _NAME,
        _START,
        _END,
        _DEVICE,
        _STREAM,
        _CORRELATION,
        SheetColumn("Type", _text("type")),
        _DURATION,
    ),
    ActivityKind.Communication: (
        _NAME,
        _START,
        _END,
        _DEVICE,
        _STREAM,
        SheetColumn("Count", _number("count")),
        SheetColumn("DataType", _data_type),
        SheetColumn("CommName", _text("comm_name")),
        SheetColumn("AlgType", _text("alg_type")),
        _CORRELATION,
        _DURATION,
    ),
    ActivityKind.Hccl: (
        _NAME,
        _START,
        _END,
        _DEVICE,
        _STREAM,
        SheetColumn("Bandwidth(GB/s)", _number("bandwidth_gb_per_s")),
        SheetColumn("CommName", _text("comm_name")),
        _DURATION,
    ),
    ActivityKind.Memory: (
        SheetColumn("Operation", _member("operation", MemoryOperation)),
        SheetColumn("Memory Kind", _member("memory_kind", MemoryKind)),
        SheetColumn("Address", _number("address")),
        SheetColumn("Size(B)", _number("size_bytes")),
        _START,
        _END,
        SheetColumn("Pid", _number("process_id")),
        _DEVICE,
        _STREAM,
        _CORRELATION,
        _DURATION,
    ),
    ActivityKind.MemSet: (SheetColumn("Value", _number("value")), *_TRANSFER_TAIL),
    ActivityKind.MemCpy: (
        SheetColumn("Copy Kind", _member("copy_kind", MemcpyKind)),
        *_TRANSFER_TAIL,
    ),
    ActivityKind.ExternalCorrelation: (
        SheetColumn("External Kind", _number("external_kind")),
        SheetColumn("External ID", _number("external_id")),
        _CORRELATION,
    ),
}
"""Columns of every kind but Marker, taken from records of a batch."""


def _source(records: Column, strings: Sequence[str]) -> Cells:
    device = records["source_kind"] == SourceKind.DEVICE
    return np.where(device, "Device", "Host").tolist()  # type: ignore[no-any-return]


def _side(field: str, source_kind: SourceKind) -> Values:
    """A field that only one source has; 0 for the other, as msMonitor writes it."""

    def values(records: Column, strings: Sequence[str]) -> Cells:
        own: Column = records["source_kind"] == source_kind
        return np.where(own, records[field], 0).tolist()  # type: ignore[no-any-return]

    return values


MARKER_SHEET: tuple[SheetColumn, ...] = (
    SheetColumn("Name", _text("name")),
    SheetColumn("SourceKind", _source),
    SheetColumn("Domain", _text("domain")),
    SheetColumn("ID", _number("id")),
    SheetColumn("Start(us)", _time("start_ns")),
    SheetColumn("End(us)", _time("end_ns")),
    SheetColumn("Pid", _side("process_id", SourceKind.HOST)),
    SheetColumn("Tid", _side("thread_id", SourceKind.HOST)),
    SheetColumn("Device ID", _side("device_id", SourceKind.DEVICE)),
    SheetColumn("Stream ID", _side("stream_id", SourceKind.DEVICE)),
    SheetColumn("Duration(us)", _duration),
)
"""Columns of the Marker sheet, taken from the events of marker pairing."""
