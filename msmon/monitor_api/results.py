"""Collected activity of one kind: columns inside, record objects on demand."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from msmon.monitor_api.activities import Table, activities
from msmon.records.batch import Column, arrow_table, numpy_columns
from msmon.records.dtypes import DTYPES, EVENT_DTYPE
from msmon.records.kinds import ActivityKind
from msmon.records.layout import EVENT_TEXT_FIELDS, TEXT_FIELDS

_OBJECTS_AT_ONCE = 1024


class ActivityRecords(Sequence[Any]):
    """A read-only sequence of record objects (see ``msmon.monitor_api.activities``) over batches.

    ``batches`` holds the columns: :class:`Batch`, or :class:`MarkerEvents` for markers.
    Objects are made when asked for and not kept, so millions of records cost no more
    than their columns.
    """

    def __init__(self, kind: ActivityKind, batches: Sequence[Table]) -> None:
        self.kind = kind
        self.batches = tuple(batches)
        self._ends = list(itertools.accumulate(map(len, self.batches)))
        self._recent: tuple[tuple[int, int], list[Any]] = ((-1, -1), [])

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Any]:
        return self._range(0, len(self))

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            if step > 0:
                return list(itertools.islice(self._range(first, last), None, None, step))
            return [self[place] for place in range(first, last, step)]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        number = bisect.bisect_right(self._ends, place)
        within = place - (self._ends[number] - len(self.batches[number]))
        chunk, offset = divmod(within, _OBJECTS_AT_ONCE)
        return self._chunk(number, chunk)[offset]

    def _range(self, first: int, last: int) -> Iterator[Any]:
        """Make the objects from ``first`` to ``last`` (exclusive), some at a time."""
        for batch, end in zip(self.batches, self._ends):
            begin = end - len(batch)
            within = range(max(first - begin, 0), min(last - begin, len(batch)))
            for start in within[::_OBJECTS_AT_ONCE]:
                yield from activities(batch, start, min(start + _OBJECTS_AT_ONCE, within.stop))

    def _chunk(self, number: int, chunk: int) -> list[Any]:
        """Objects around one that was asked for: a loop over indices meets them again."""
        place, objects = self._recent
        if place != (number, chunk):
            start = chunk * _OBJECTS_AT_ONCE
            objects = list(activities(self.batches[number], start, start + _OBJECTS_AT_ONCE))
            self._recent = ((number, chunk), objects)
        return objects

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
