"""JSON lines of activity records: msMonitor's keys per kind, in alphabetical order."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Union

import numpy as np

from msmon.records.batch import Batch, Column
from msmon.records.kinds import INVALID_ID, ActivityKind, SourceKind
from msmon.records.layout import F64, I64, LAYOUTS, MARKER_EVENT, SOURCE_NAMES, Field, Layout
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
    """The keys of one kind of line and the source of each value.

    ``label`` names the lines that have these very keys: the kind, "HostMarker" or "DeviceMarker".
    """

    kind: str
    label: str
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


def _source(field: Field) -> Source:
    """Return where the value of a field comes from, by the field's description."""
    if field.is_text:
        return lambda block: block.texts(field.name)
    if field.json_has_names:
        return _named(field)
    if field.type == F64:
        return _real_number(field.name)
    if field.type == I64:
        return _unsigned_id(field.name)
    return field.name


def _named(field: Field) -> Callable[[Block], Part]:
    def part(block: Block) -> Part:
        used, places = np.unique(block.records[field.name], return_inverse=True)
        names = [field.names.get(number, field.unassigned) for number in used.tolist()]
        return Texts([json_text(name) for name in names], places)

    return part


def _real_number(field: str) -> Callable[[Block], Part]:
    """Return the source of a real number. One that is not finite is null, as JSON has no other."""

    def part(block: Block) -> Part:
        used, places = np.unique(block.records[field], return_inverse=True)
        fragments = [
            json.dumps(number).encode() if math.isfinite(number) else b"null"
            for number in used.tolist()
        ]
        return Texts(fragments, places)

    return part


def _unsigned_id(field: str) -> Callable[[Block], Part]:
    """Return the source of a device or stream id of marker events, where -1 is the invalid id."""
    return lambda block: np.where(block.records[field] < 0, INVALID_ID, block.records[field])


def _shape(kind: ActivityKind, layout: Layout, side: SourceKind | None = None) -> LineShape:
    """Return the shape of a kind's lines. For marker events ``side`` is that of the lines."""
    fields = [field for field in layout.fields if field.side in (None, side)]
    values = {item.json_key: _source(item) for item in fields if item.json_key}
    label = kind.name if side is None else f"{SOURCE_NAMES[side]}{kind.name}"
    return LineShape(kind.name, label, values)


LINE_SHAPES: dict[ActivityKind, LineShape] = {
    kind: _shape(kind, layout)
    for kind, layout in LAYOUTS.items()
    if kind is not ActivityKind.Marker
}
"""Shape of the lines of every kind but Marker, whose lines come from paired events."""

_MARKER_SHAPES = {
    side: _shape(ActivityKind.Marker, MARKER_EVENT, side)
    for side in (SourceKind.HOST, SourceKind.DEVICE)
}


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
    for source, shape in _MARKER_SHAPES.items():
        events = paired.events[paired.events["source_kind"] == source]
        if len(events):
            yield LineBlock(shape, Block(events, paired.strings))
