"""One object per activity record, for code that wants records instead of columns.

The classes are made from :mod:`msmon.records.layout`. Attributes and the order of ``to_tuple()``
are those that msMonitor documents for API, Kernel, Communication and Marker; the other kinds
follow the same manner. ``startNs`` and ``endNs`` are ns; ``to_tuple()`` gives them in µs as
floats, which hold a quarter of a microsecond at wall-clock values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Union

import numpy as np

from msmon.records.batch import Batch, Column, printable
from msmon.records.kinds import ActivityKind
from msmon.records.layout import API_KINDS, LAYOUTS, MARKER_EVENT, Field, Layout
from msmon.records.markers import MarkerEvents

Table = Union[Batch, MarkerEvents]

_UNKNOWN = "UNKNOWN"
"""Name of a number that the header does not define, where it names no such number itself."""


@dataclasses.dataclass
class Activity:
    """Base of all record objects."""

    def to_tuple(self) -> tuple[Any, ...]:
        """Return all attributes in order, start and end in µs."""
        values = ((item.name, getattr(self, item.name)) for item in dataclasses.fields(self))
        return tuple(
            value / 1000 if name in ("startNs", "endNs") else value for name, value in values
        )


def _default(field: Field) -> Any:
    """Return the value that an attribute has in an object made without arguments."""
    if field.is_text or field.names:
        return ""
    if field.is_switch:
        return False
    return np.dtype(field.type).type(0).item()


def _class(name: str, layout: Layout) -> type[Activity]:
    attributes = [
        (field.attribute, type(_default(field)), dataclasses.field(default=_default(field)))
        for field in layout.shown_fields
    ]
    made = dataclasses.make_dataclass(
        name, attributes, bases=(Activity,), namespace={"__doc__": layout.summary}
    )
    made.__module__ = __name__  # so that objects can be pickled
    return made


API = _class("API", LAYOUTS[ActivityKind.API])
Kernel = _class("Kernel", LAYOUTS[ActivityKind.Kernel])
Communication = _class("Communication", LAYOUTS[ActivityKind.Communication])
Marker = _class("Marker", MARKER_EVENT)
Hccl = _class("Hccl", LAYOUTS[ActivityKind.Hccl])
Memory = _class("Memory", LAYOUTS[ActivityKind.Memory])
MemSet = _class("MemSet", LAYOUTS[ActivityKind.MemSet])
MemCpy = _class("MemCpy", LAYOUTS[ActivityKind.MemCpy])
ExternalCorrelation = _class("ExternalCorrelation", LAYOUTS[ActivityKind.ExternalCorrelation])

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


def activities(table: Table, first: int, last: int) -> Iterator[Any]:
    """Make the objects of records ``first`` to ``last`` (exclusive) of a table."""
    if isinstance(table, MarkerEvents):
        make, layout, records = Marker, MARKER_EVENT, table.events
    else:
        make, layout, records = CLASSES[table.kind], LAYOUTS[table.kind], table.records
    part = records[first:last]
    columns = [_values(part, table.strings, field) for field in layout.shown_fields]
    return (make(*values) for values in zip(*columns))


def _values(records: Column, strings: tuple[str, ...], field: Field) -> list[Any]:
    column = records[field.name]
    if field.is_text:
        return [printable(strings[number]) for number in column.tolist()]
    if field.names:
        unknown = field.unassigned or _UNKNOWN
        return [field.names.get(number, unknown) for number in column.tolist()]
    if field.is_switch:
        column = column != 0
    if field.side is not None:
        column = np.where(records["source_kind"] == field.side, column, 0)
    values: list[Any] = column.tolist()
    return values
