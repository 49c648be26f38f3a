"""One object per activity record, for code that wants records instead of columns.

Attributes and the order of ``to_tuple()`` are those that msMonitor documents for API,
Kernel, Communication and Marker; the other kinds follow the same manner. ``startNs`` and
``endNs`` are ns; ``to_tuple()`` gives them in µs as floats, which hold a quarter of
a microsecond at wall-clock values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from msmon.records.batch import Batch, Column, printable
from msmon.records.kinds import (
    API_KINDS,
    ActivityKind,
    CommunicationDataType,
    MemcpyKind,
    MemoryKind,
    MemoryOperation,
    SourceKind,
)
from msmon.records.markers import MarkerEvents

Table = Union[Batch, MarkerEvents]


@dataclass
class Activity:
    """Base of all record objects."""

    def to_tuple(self) -> tuple[Any, ...]:
        """Return all attributes in order, start and end in µs."""
        return tuple(
            value / 1000 if name in ("startNs", "endNs") else value
            for name, value in ((item.name, getattr(self, item.name)) for item in _fields(self))
        )


def _fields(activity: Activity) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(activity)


@dataclass
class API(Activity):
    """A host call: kinds API, AclAPI, NodeAPI and RuntimeAPI."""

    name: str = ""
    startNs: int = 0
    endNs: int = 0
    pid: int = 0
    tid: int = 0
    correlationId: int = 0


@dataclass
class Kernel(Activity):
    """A kernel on a device's stream."""

    name: str = ""
    startNs: int = 0
    endNs: int = 0
    deviceId: int = 0
    streamId: int = 0
    correlationId: int = 0
    type: str = ""


@dataclass
class Communication(Activity):
    """A collective operator on a device's stream; ``dataType`` is a name such as "FP16"."""

    name: str = ""
    startNs: int = 0
    endNs: int = 0
    deviceId: int = 0
    streamId: int = 0
    count: int = 0
    dataType: str = ""
    commName: str = ""
    algType: str = ""
    correlationId: int = 0


@dataclass
class Marker(Activity):
    """A finished range, or a mark (start equals end). ``sourceKind``: "Host" or "Device".

    Device and stream of a host marker, pid and tid of a device marker are 0.
    """

    name: str = ""
    sourceKind: str = ""
    domain: str = ""
    id: int = 0
    startNs: int = 0
    endNs: int = 0
    pid: int = 0
    tid: int = 0
    deviceId: int = 0
    streamId: int = 0


@dataclass
class Hccl(Activity):
    """A collective as the older Hccl kind reports it; ``bandwidth`` in GB/s."""

    name: str = ""
    startNs: int = 0
    endNs: int = 0
    deviceId: int = 0
    streamId: int = 0
    bandwidth: float = 0.0
    commName: str = ""


@dataclass
class Memory(Activity):
    """A memory allocation or release; sizes in bytes."""

    operation: str = ""
    memoryKind: str = ""
    address: int = 0
    size: int = 0
    startNs: int = 0
    endNs: int = 0
    pid: int = 0
    deviceId: int = 0
    streamId: int = 0
    correlationId: int = 0


@dataclass
class MemSet(Activity):
    """A memory fill; ``size`` in bytes."""

    value: int = 0
    size: int = 0
    startNs: int = 0
    endNs: int = 0
    deviceId: int = 0
    streamId: int = 0
    correlationId: int = 0
    isAsync: bool = False


@dataclass
class MemCpy(Activity):
    """A copy; ``size`` in bytes, ``copyKind`` such as "HTOD"."""

    copyKind: str = ""
    size: int = 0
    startNs: int = 0
    endNs: int = 0
    deviceId: int = 0
    streamId: int = 0
    correlationId: int = 0
    isAsync: bool = False


@dataclass
class ExternalCorrelation(Activity):
    """Ties a correlation id to an id that the program pushed."""

    externalKind: int = 0
    externalId: int = 0
    correlationId: int = 0


CLASSES: dict[ActivityKind, type[Activity]] = {
    **dict.fromkeys(sorted(API_KINDS), API),
    ActivityKind.Kernel: Kernel,
    ActivityKind.Communication: Communication,
    ActivityKind.Marker: Marker,
    ActivityKind.Hccl: Hccl,
    ActivityKind.Memory: Memory,
    ActivityKind.MemSet: MemSet,
    ActivityKind.MemCpy: MemCpy,
    ActivityKind.ExternalCorrelation: ExternalCorrelation,
}
"""Class of the record objects of each kind."""

_FIELD_OF = {
    "startNs": "start_ns",
    "endNs": "end_ns",
    "pid": "process_id",
    "tid": "thread_id",
    "deviceId": "device_id",
    "streamId": "stream_id",
    "correlationId": "correlation_id",
    "dataType": "data_type",
    "commName": "comm_name",
    "algType": "alg_type",
    "sourceKind": "source_kind",
    "bandwidth": "bandwidth_gb_per_s",
    "size": "size_bytes",
    "memoryKind": "memory_kind",
    "copyKind": "copy_kind",
    "isAsync": "is_async",
    "externalKind": "external_kind",
    "externalId": "external_id",
}
"""Attribute → column, where the names differ."""


def _named(enumeration: Any, unknown: str) -> Callable[[Column], list[Any]]:
    names = {item.value: item.name for item in enumeration}
    return lambda column: [names.get(value, unknown) for value in column.tolist()]


_CONVERSIONS: dict[str, Callable[[Column], list[Any]]] = {
    "dataType": _named(CommunicationDataType, CommunicationDataType.INVALID_TYPE.name),
    "operation": _named(MemoryOperation, "UNKNOWN"),
    "memoryKind": _named(MemoryKind, MemoryKind.UNKNOWN.name),
    "copyKind": _named(MemcpyKind, MemcpyKind.UNKNOWN.name),
    "sourceKind": lambda column: np.where(column == SourceKind.DEVICE, "Device", "Host").tolist(),
    "isAsync": lambda column: (column != 0).tolist(),
}

_TEXTS = frozenset({"name", "type", "comm_name", "alg_type", "domain"})
_SIDES = {
    "pid": SourceKind.HOST,
    "tid": SourceKind.HOST,
    "deviceId": SourceKind.DEVICE,
    "streamId": SourceKind.DEVICE,
}
"""Attributes of a marker that only one side has."""


def activities(table: Table, first: int, last: int) -> Iterator[Any]:
    """Make the objects of records ``first`` to ``last`` (exclusive) of a table."""
    marker = isinstance(table, MarkerEvents)
    kind = ActivityKind.Marker if isinstance(table, MarkerEvents) else table.kind
    records = table.events if isinstance(table, MarkerEvents) else table.records
    part = records[first:last]
    make = CLASSES[kind]
    names = [item.name for item in dataclasses.fields(make)]
    columns = [_values(part, table.strings, name, marker) for name in names]
    return (make(*values) for values in zip(*columns))


def _values(records: Column, strings: tuple[str, ...], attribute: str, marker: bool) -> list[Any]:
    field = _FIELD_OF.get(attribute, attribute)
    column = records[field]
    if attribute in _CONVERSIONS:
        return _CONVERSIONS[attribute](column)
    if field in _TEXTS:
        return [printable(strings[number]) for number in column.tolist()]
    if marker and attribute in _SIDES:
        column = np.where(records["source_kind"] == _SIDES[attribute], column, 0)
    values: list[Any] = column.tolist()
    return values
