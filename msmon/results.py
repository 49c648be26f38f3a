"""Collected activity of one kind: columns inside, record objects on demand."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from msmon.activities import Table, activities
from msmon.kinds import ActivityKind
from msmon.markers import EVENT_DTYPE, EVENT_TEXT_FIELDS
from msmon.records import DTYPES, TEXT_FIELDS, Column
from msmon.tables import arrow_table, numpy_columns

_OBJECTS_AT_ONCE = 4096


class ActivityRecords(Sequence[Any]):
    """A read-only sequence of record objects (see ``msmon.activities``) over batches.

    ``batches`` holds the columns: :class:`Batch`, or :class:`MarkerEvents` for markers.
    An object is made each time it is asked for, so millions of records cost
    no more than their columns.
    """

    def __init__(self, kind: ActivityKind, batches: Sequence[Table]) -> None:
        self.kind = kind
        self.batches = tuple(batches)
        self._ends = list(itertools.accumulate(map(len, self.batches)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            for first in range(0, len(batch), _OBJECTS_AT_ONCE):
                yield from activities(batch, first, first + _OBJECTS_AT_ONCE)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        number = bisect.bisect_right(self._ends, place)
        batch = self.batches[number]
        within = place - (self._ends[number] - len(batch))
        return next(activities(batch, within, within + 1))

    def __repr__(self) -> str:
        return f"<{len(self)} {self.kind.name} records>"

    def to_numpy(self) -> dict[str, Column]:
        """Return field name → array of shape (n,) over all batches; texts as str objects."""
        parts = [batch.to_numpy() for batch in self.batches] or [self._empty()]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def to_arrow(self) -> Any:
        """Return a ``pyarrow.Table`` over all batches. Raises UsageError without pyarrow."""
        tables = [batch.to_arrow() for batch in self.batches]
        if not tables:
            return arrow_table(*self._empty_table())
        import pyarrow as pa

        return pa.concat_tables(tables).unify_dictionaries()

    def _empty(self) -> dict[str, Column]:
        return numpy_columns(*self._empty_table())

    def _empty_table(self) -> tuple[Column, tuple[str, ...], tuple[str, ...]]:
        if self.kind is ActivityKind.Marker:
            return np.empty(0, EVENT_DTYPE), ("",), EVENT_TEXT_FIELDS
        return np.empty(0, DTYPES[self.kind]), ("",), TEXT_FIELDS[self.kind]
