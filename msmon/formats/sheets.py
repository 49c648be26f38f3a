"""What each sheet of a workbook holds: columns per activity kind.

The columns are the shown fields of :mod:`msmon.records.layout`, and the duration. A column turns
whole arrays into Python values: times become :class:`Microseconds`, so that nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from msmon.records.batch import Column, printable
from msmon.records.durations import are_spans
from msmon.records.kinds import ActivityKind
from msmon.records.layout import LAYOUTS, MARKER_EVENT, Field

Cells = Sequence[Any]
"""Values of one column: str, int, float, Microseconds, or None for an empty cell."""

Values = Callable[[Column, Sequence[str]], Cells]
"""Takes records of one kind (or marker events) and the texts that their text fields index."""


class Microseconds(int):
    """A time or duration in ns that a sheet shows in µs."""


@dataclass(frozen=True)
class SheetColumn:
    """A header, and how its values come out of records or marker events."""

    header: str
    values: Values


def sheet_columns(kind: ActivityKind) -> tuple[SheetColumn, ...]:
    """Return the columns of a kind's sheet; those of Marker are taken from events of pairing."""
    layout = MARKER_EVENT if kind is ActivityKind.Marker else LAYOUTS[kind]
    columns = [SheetColumn(field.header, _values(field)) for field in layout.shown_fields]
    if layout.has_duration:
        columns.append(SheetColumn("Duration(us)", _duration))
    return tuple(columns)


def _values(field: Field) -> Values:
    if field.is_text:
        return _text(field)
    if field.names:
        return _name(field)
    if field.name.endswith("_ns"):
        return _time(field)
    if field.side is not None:
        return _one_side(field)
    return lambda records, strings: records[field.name].tolist()


def _time(field: Field) -> Values:
    return lambda records, strings: [Microseconds(ns) for ns in records[field.name].tolist()]


def _text(field: Field) -> Values:
    def values(records: Column, strings: Sequence[str]) -> Cells:
        texts = [printable(item) for item in strings]
        return [texts[index] for index in records[field.name].tolist()]

    return values


def _name(field: Field) -> Values:
    """Names of numbers; one that has none is shown as the number."""
    names, unassigned = field.names, field.unassigned
    return lambda records, strings: [
        names.get(number, unassigned or number) for number in records[field.name].tolist()
    ]


def _one_side(field: Field) -> Values:
    """A field that only one source has; 0 for the other, as msMonitor writes it."""

    def values(records: Column, strings: Sequence[str]) -> Cells:
        own: Column = records["source_kind"] == field.side
        return np.where(own, records[field.name], 0).tolist()  # type: ignore[no-any-return]

    return values


def _duration(records: Column, strings: Sequence[str]) -> Cells:
    """End minus start, in ns shown as µs; empty where they are no times."""
    usable = are_spans(records["start_ns"], records["end_ns"])
    durations = np.where(usable, records["end_ns"] - records["start_ns"], 0).tolist()
    return [Microseconds(ns) if timed else None for ns, timed in zip(durations, usable.tolist())]
