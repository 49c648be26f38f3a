"""JSON lines of activity records: msMonitor's keys per kind, in alphabetical order."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Union

import numpy as np

from msmon.records.batch import Batch, Column
from msmon.records.kinds import (
    API_KINDS,
    INVALID_ID,
    ActivityKind,
    CommunicationDataType,
    SourceKind,
)
from msmon.records.markers import MarkerEvents
from msmon.sinks.jsonl.text_columns import Part, Texts, compacted, json_text, lines

Source = Union[str, Callable[["Block"], Part]]
"""Where a value comes from: an integer field, or a function for anything else."""


@dataclass
class Block:
    """Records with their texts: what a batch and the events of paired markers have in common."""

    records: Column
    strings: tuple[str, ...]

    def texts(self, field: str) -> Texts:
        """Return a text field as JSON texts; only those in use are encoded."""
        used, places = compacted(self.records[field])
        return Texts([json_text(self.strings[number]) for number in used.tolist()], places)


@dataclass(frozen=True)
class LineShape:
    """The keys of one kind of line and the source of each value."""

    kind: str
    values: dict[str, Source]

    def parts(self, block: Block) -> list[Part]:
        """Return the parts of the lines for ``json_lines.lines``."""
        result: list[Part] = []
        for place, (key, source) in enumerate(sorted({**self.values, "kind": _no_value}.items())):
            constant = f"{',' if place else '{'}{json.dumps(key)}:".encode()
            if key == "kind":
                result.append(constant + json.dumps(self.kind).encode())
                continue
            value = block.records[source] if isinstance(source, str) else source(block)
            result += [constant, value]
        result.append(b"}\n")
        return result


def _no_value(block: Block) -> Part:
    return b""


def _text(field: str) -> Callable[[Block], Part]:
    return lambda block: block.texts(field)


def _constant(text: str) -> Callable[[Block], Part]:
    return lambda block: json.dumps(text).encode()


def _data_type(block: Block) -> Part:
    """Name of the data type; numbers that MSPTI does not assign are INVALID_TYPE."""
    names = {int(member): member.name for member in CommunicationDataType}
    used, places = np.unique(block.records["data_type"], return_inverse=True)
    unknown = CommunicationDataType.INVALID_TYPE.name
    return Texts([json_text(names.get(number, unknown)) for number in used.tolist()], places)


def _bandwidth(block: Block) -> Part:
    """A number; null where it is not finite, which JSON can't express."""
    used, places = np.unique(block.records["bandwidth_gb_per_s"], return_inverse=True)
    fragments = [
        json.dumps(number).encode() if math.isfinite(number) else b"null"
        for number in used.tolist()
    ]
    return Texts(fragments, places)


def _unsigned_id(field: str) -> Callable[[Block], Part]:
    """A device or stream id of marker events, where -1 is MSPTI's invalid id."""
    return lambda block: np.where(block.records[field] < 0, INVALID_ID, block.records[field])


_TIMES: dict[str, Source] = {"startNs": "start_ns", "endNs": "end_ns"}
_DEVICE: dict[str, Source] = {"deviceId": "device_id", "streamId": "stream_id"}
_CORRELATION: dict[str, Source] = {"correlationId": "correlation_id"}
_TRANSFER: dict[str, Source] = {
    **_TIMES,
    **_DEVICE,
    **_CORRELATION,
    "bytes": "size_bytes",
    "isAsync": "is_async",
}

_API: dict[str, Source] = {
    **_TIMES,
    **_CORRELATION,
    "name": _text("name"),
    "processId": "process_id",
    "threadId": "thread_id",
}

_SHAPES: dict[ActivityKind, dict[str, Source]] = {
    **dict.fromkeys(API_KINDS, _API),
    ActivityKind.Kernel: {
        **_TIMES,
        **_DEVICE,
        **_CORRELATION,
        "name": _text("name"),
        "type": _text("type"),
    },
    ActivityKind.Communication: {
        **_TIMES,
        **_DEVICE,
        **_CORRELATION,
        "name": _text("name"),
        "dataType": _data_type,
        "count": "count",
        "commName": _text("comm_name"),
        "algType": _text("alg_type"),
    },
    ActivityKind.Hccl: {
        **_TIMES,
        **_DEVICE,
        "name": _text("name"),
        "commName": _text("comm_name"),
        "bandWidth": _bandwidth,
    },
    ActivityKind.Memory: {
        **_TIMES,
        **_DEVICE,
        **_CORRELATION,
        "memoryOperationType": "operation",
        "memoryKind": "memory_kind",
        "address": "address",
        "bytes": "size_bytes",
        "processId": "process_id",
    },
    ActivityKind.MemSet: {**_TRANSFER, "value": "value"},
    ActivityKind.MemCpy: {**_TRANSFER, "copyKind": "copy_kind"},
    ActivityKind.ExternalCorrelation: {
        **_CORRELATION,
        "externalKind": "external_kind",
        "externalId": "external_id",
    },
}

_MARKER: dict[str, Source] = {
    **_TIMES,
    "name": _text("name"),
    "domain": _text("domain"),
    "id": "id",
}

_HOST_MARKER = LineShape(
    "Marker",
    {
        **_MARKER,
        "sourceKind": _constant("Host"),
        "processId": "end_process_id",
        "threadId": "end_thread_id",
    },
)
_DEVICE_MARKER = LineShape(
    "Marker",
    {
        **_MARKER,
        "sourceKind": _constant("Device"),
        "deviceId": _unsigned_id("device_id"),
        "streamId": _unsigned_id("stream_id"),
    },
)

LINE_SHAPES = {kind: LineShape(kind.name, values) for kind, values in _SHAPES.items()}
"""Shape of the lines of every kind but Marker, whose lines come from paired events."""


@dataclass(frozen=True)
class LineBlock:
    """Lines of one shape, not yet written out: ``count`` of them."""

    shape: LineShape
    block: Block

    @property
    def count(self) -> int:
        return len(self.block.records)

    def encode(self, begin: int, end: int) -> bytes:
        """Return lines ``begin`` to ``end``, each ending with a newline."""
        part = Block(self.block.records[begin:end], self.block.strings)
        return lines(self.shape.parts(part), end - begin)


def record_lines(batch: Batch) -> LineBlock:
    """Return the lines of a batch of any kind but Marker."""
    return LineBlock(LINE_SHAPES[batch.kind], Block(batch.records, batch.strings))


def marker_lines(paired: MarkerEvents) -> Iterator[LineBlock]:
    """Yield the lines of paired markers, those of the host first."""
    for source, shape in ((SourceKind.HOST, _HOST_MARKER), (SourceKind.DEVICE, _DEVICE_MARKER)):
        events = paired.events[paired.events["source_kind"] == source]
        if len(events):
            yield LineBlock(shape, Block(events, paired.strings))
