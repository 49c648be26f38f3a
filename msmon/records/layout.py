"""What a record of each kind consists of: the one table that everything else derives from.

A :class:`Layout` restates a struct of ``mspti_activity.h`` field by field, in memory order, and
says of each field what it is called wherever it is read. From this table come numpy's dtypes,
the kinds that a filter or LD_PRELOAD concerns, the labels of statistics, the record objects of
the Monitor API, the columns of the sheets, the keys of JSON lines and the arguments of Perfetto
slices. Tables of databases are msMonitor's own and stay written by hand.

To add a field to a kind: add a :class:`Field` to its layout, and its name to ``shown`` if
people are to see it. ``tests/records/test_layout.py`` compares every field with a C compiler's.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msmon.records.kinds import (
    ActivityKind,
    CommunicationDataType,
    MemcpyKind,
    MemoryKind,
    MemoryOperation,
    SourceKind,
)

U8, U32, U64, I64, F64, TRUTH = "u1", "<u4", "<u8", "<i8", "<f8", "?"
"""Types of fields, as numpy writes them."""


@dataclass(frozen=True)
class Field:
    """One field of a record.

    A field without ``json_key``, ``attribute`` or ``header`` does not occur there.
    """

    name: str
    """Name of the column; a unit is its ending (``start_ns``, ``size_bytes``)."""
    type: str
    json_key: str = ""
    """Key in JSON lines (msMonitor's)."""
    attribute: str = ""
    """Attribute of record objects (msMonitor's)."""
    header: str = ""
    """Header of the column in a sheet (msMonitor's)."""
    is_text: bool = False
    """In a buffer a ``char*``; in a batch or in events the id of a text."""
    is_switch: bool = False
    """A number that means true or false."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Number → the name that people read instead; empty for plain numbers."""
    unassigned: str = ""
    """Name of every number that ``names`` lacks, where there is such a name."""
    json_has_names: bool = False
    """JSON lines show the names too; msMonitor's show the numbers of all but the data type."""
    side: SourceKind | None = None
    """The source that has this field, in a table whose rows come from host and device."""


@dataclass(frozen=True)
class Layout:
    """The fields of one kind of record, and what stands for the record as a whole."""

    summary: str
    """What one record is."""
    fields: tuple[Field, ...]
    """All fields in memory order; of a C struct without the ``kind`` it begins with."""
    shown: tuple[str, ...]
    """Fields of record objects and sheets, in msMonitor's order."""
    label: str = "name"
    """The field by which statistics tell operators apart; empty: all are one operator."""
    needs_preload: bool = False
    """MSPTI collects this kind only with libmspti.so in LD_PRELOAD (else result 6)."""

    def __getitem__(self, name: str) -> Field:
        """Return the field of this name. Raises KeyError."""
        for item in self.fields:
            if item.name == name:
                return item
        raise KeyError(name)

    def __contains__(self, name: str) -> bool:
        return any(item.name == name for item in self.fields)

    @property
    def shown_fields(self) -> tuple[Field, ...]:
        """The fields of record objects and sheets, in their order."""
        return tuple(self[name] for name in self.shown)

    @property
    def text_fields(self) -> tuple[str, ...]:
        """Names of the fields that hold texts."""
        return tuple(item.name for item in self.fields if item.is_text)

    @property
    def has_duration(self) -> bool:
        """Whether a record has a start and an end."""
        return "start_ns" in self and "end_ns" in self

    @property
    def end_field(self) -> str:
        """The field that says when the record was complete; empty when there is none."""
        return next((name for name in ("end_ns", "timestamp_ns") if name in self), "")

    @property
    def details(self) -> tuple[str, ...]:
        """The shown fields that neither name the record nor say when or where it ran."""
        return tuple(name for name in self.shown if name not in {*_TIME_AND_PLACE, self.label})

    @property
    def c_fields(self) -> tuple[tuple[str, str], ...]:
        """(name, type) of all fields of the C struct, ``kind`` first."""
        return (("kind", U32), *((item.name, item.type) for item in self.fields))


_TIME_AND_PLACE = {"start_ns", "end_ns", "device_id", "stream_id", "process_id", "thread_id"}


def _names(members: Iterable[enum.IntEnum]) -> dict[int, str]:
    return {member.value: member.name for member in members}


def _text(name: str, key: str, header: str) -> Field:
    return Field(name, U64, key, key, header, is_text=True)


_START = Field("start_ns", U64, "startNs", "startNs", "Start(us)")
_END = Field("end_ns", U64, "endNs", "endNs", "End(us)")
_DEVICE = Field("device_id", U32, "deviceId", "deviceId", "Device ID")
_STREAM = Field("stream_id", U32, "streamId", "streamId", "Stream ID")
_PROCESS = Field("process_id", U32, "processId", "pid", "Pid")
_THREAD = Field("thread_id", U32, "threadId", "tid", "Tid")
_CORRELATION = Field("correlation_id", U64, "correlationId", "correlationId", "Correlation ID")
_SIZE = Field("size_bytes", U64, "bytes", "size", "Size(B)")
_IS_ASYNC = Field("is_async", U8, "isAsync", "isAsync", "Async", is_switch=True)
_NAME = _text("name", "name", "Name")
_COMM_NAME = _text("comm_name", "commName", "CommName")

_WHEN_AND_WHERE = ("start_ns", "end_ns", "device_id", "stream_id")
_TRANSFER = (_SIZE, _START, _END, _DEVICE, _STREAM, _CORRELATION, _IS_ASYNC)
_TRANSFER_SHOWN = tuple(item.name for item in _TRANSFER)

_API = Layout(
    "A host call: kinds API, AclAPI, NodeAPI and RuntimeAPI.",
    (_START, _END, _PROCESS, _THREAD, _CORRELATION, _NAME),
    ("name", "start_ns", "end_ns", "process_id", "thread_id", "correlation_id"),
)

LAYOUTS: dict[ActivityKind, Layout] = {
    # object_id of msptiActivityMarker is a union: process and thread, or device and stream
    ActivityKind.Marker: Layout(
        "One end of a range, or a mark, as one source recorded it.",
        (
            Field("flag", U32, "flag"),
            Field("source_kind", U32, "sourceKind"),
            Field("timestamp_ns", U64, "timestampNs"),
            Field("id", U64, "id"),
            Field("process_or_device_id", U32),
            Field("thread_or_stream_id", U32),
            _NAME,
            _text("domain", "domain", "Domain"),
        ),
        (),  # people see the events of paired markers: MARKER_EVENT
    ),
    ActivityKind.Kernel: Layout(
        "A kernel on a device's stream.",
        (_START, _END, _DEVICE, _STREAM, _CORRELATION, _text("type", "type", "Type"), _NAME),
        ("name", *_WHEN_AND_WHERE, "correlation_id", "type"),
    ),
    ActivityKind.API: _API,
    ActivityKind.AclAPI: _API,
    ActivityKind.NodeAPI: _API,
    ActivityKind.RuntimeAPI: _API,
    ActivityKind.Hccl: Layout(
        "A collective as the older Hccl kind reports it; ``bandwidth`` in GB/s.",
        (
            _START, _END, _DEVICE, _STREAM,
            Field("bandwidth_gb_per_s", F64, "bandWidth", "bandwidth", "Bandwidth(GB/s)"),
            _NAME, _COMM_NAME,
        ),
        ("name", *_WHEN_AND_WHERE, "bandwidth_gb_per_s", "comm_name"),
        needs_preload=True,
    ),
    ActivityKind.Memory: Layout(
        "A memory allocation or release; ``size`` in bytes.",
        (
            Field(
                "operation", U32, "memoryOperationType", "operation", "Operation",
                names=_names(MemoryOperation),
            ),
            Field(
                "memory_kind", U32, "memoryKind", "memoryKind", "Memory Kind",
                names=_names(MemoryKind),
            ),
            _CORRELATION, _START, _END,
            Field("address", U64, "address", "address", "Address"),
            _SIZE, _PROCESS, _DEVICE, _STREAM,
        ),
        (
            "operation", "memory_kind", "address", "size_bytes", "start_ns", "end_ns",
            "process_id", "device_id", "stream_id", "correlation_id",
        ),
        label="operation", needs_preload=True,
    ),
    ActivityKind.MemSet: Layout(
        "A memory fill; ``size`` in bytes.",
        (Field("value", U32, "value", "value", "Value"), *_TRANSFER),
        ("value", *_TRANSFER_SHOWN),
        label="", needs_preload=True,
    ),
    ActivityKind.MemCpy: Layout(
        'A copy; ``size`` in bytes, ``copyKind`` such as "HTOD".',
        (
            Field(
                "copy_kind", U32, "copyKind", "copyKind", "Copy Kind", names=_names(MemcpyKind)
            ),
            *_TRANSFER,
        ),
        ("copy_kind", *_TRANSFER_SHOWN),
        label="copy_kind", needs_preload=True,
    ),
    ActivityKind.ExternalCorrelation: Layout(
        "Ties a correlation id to an id that the program pushed.",
        (
            Field("external_kind", U32, "externalKind", "externalKind", "External Kind"),
            Field("external_id", U64, "externalId", "externalId", "External ID"),
            _CORRELATION,
        ),
        ("external_kind", "external_id", "correlation_id"),
    ),
    ActivityKind.Communication: Layout(
        'A collective operator on a device\'s stream; ``dataType`` is a name such as "FP16".',
        (
            Field(
                "data_type", U32, "dataType", "dataType", "DataType",
                names=_names(CommunicationDataType),
                unassigned=CommunicationDataType.INVALID_TYPE.name,
                json_has_names=True,
            ),
            Field("count", U64, "count", "count", "Count"),
            _DEVICE, _STREAM, _START, _END,
            _text("alg_type", "algType", "AlgType"),
            _NAME, _COMM_NAME, _CORRELATION,
        ),
        ("name", *_WHEN_AND_WHERE, "count", "data_type", "comm_name", "alg_type", "correlation_id"),
    ),
}  # fmt: skip
"""The record of each kind."""

SOURCE_NAMES = {SourceKind.HOST.value: "Host", SourceKind.DEVICE.value: "Device"}

MARKER_EVENT = Layout(
    'A finished range, or a mark (start equals end); ``sourceKind`` is "Host" or "Device". '
    "Device and stream of a host marker, pid and tid of a device marker are 0.",
    (
        Field("id", U64, "id", "id", "ID"),
        _START,
        _END,
        Field("device_id", I64, "deviceId", "deviceId", "Device ID", side=SourceKind.DEVICE),
        Field("stream_id", I64, "streamId", "streamId", "Stream ID", side=SourceKind.DEVICE),
        Field("name", U32, "name", "name", "Name", is_text=True),
        Field("domain", U32, "domain", "domain", "Domain", is_text=True),
        Field(
            "source_kind", U32, "sourceKind", "sourceKind", "SourceKind",
            names=SOURCE_NAMES, unassigned=SOURCE_NAMES[SourceKind.HOST], json_has_names=True,
        ),
        Field("process_id", U32, "", "pid", "Pid", side=SourceKind.HOST),
        Field("thread_id", U32, "", "tid", "Tid", side=SourceKind.HOST),
        Field("end_process_id", U32, "processId", side=SourceKind.HOST),
        Field("end_thread_id", U32, "threadId", side=SourceKind.HOST),
        Field("instantaneous", TRUTH),
    ),
    (
        "name", "source_kind", "domain", "id", "start_ns", "end_ns",
        "process_id", "thread_id", "device_id", "stream_id",
    ),
)  # fmt: skip
"""The event that paired markers become: a range or a mark, once per source.

``process_id`` and ``thread_id`` are those of the host start; the ``end_`` ones those of the host
end, in device events of the start again. ``device_id`` and ``stream_id`` are -1 in host events."""

TEXT_FIELDS: dict[ActivityKind, tuple[str, ...]] = {
    kind: layout.text_fields for kind, layout in LAYOUTS.items()
}
"""The ``char*`` fields of each record."""

EVENT_TEXT_FIELDS = MARKER_EVENT.text_fields

API_KINDS = frozenset(kind for kind, layout in LAYOUTS.items() if layout is _API)
"""Kinds whose records are ``msptiActivityApi``."""

PRELOAD_KINDS = frozenset(kind for kind, layout in LAYOUTS.items() if layout.needs_preload)
"""Kinds that MSPTI only collects with libmspti.so in LD_PRELOAD (result 6 otherwise)."""

NAMELESS_KINDS = frozenset(kind for kind, layout in LAYOUTS.items() if "name" not in layout)
"""Kinds whose records carry no name, so that no filter can apply to them."""
