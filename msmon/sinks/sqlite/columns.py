"""From fields of activity records to the values that columns of the database hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from msmon.records.batch import Batch, Column, printable
from msmon.records.markers import MarkerEvents
from msmon.sinks.sqlite.insert import Cell, as_signed
from msmon.sinks.sqlite.schema import MARKER_CONNECTION_OFFSET


class StringIds:
    """Texts of one file and their ids. ``new`` holds (id, text) of those not inserted yet."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._next_id = 0
        self.new: list[tuple[int, str]] = []

    def load(self, rows: Iterator[tuple[int, str]]) -> None:
        """Take over the ids of an existing file."""
        self._ids = {text: number for number, text in rows}
        self._next_id = max(self._ids.values(), default=-1) + 1
        self.new.clear()

    def id_of(self, text: str) -> int:
        """Return the id of a text, a new one for a new text."""
        number = self._ids.get(text)
        if number is None:
            number = self._ids[text] = self.id_of_unique(text)
        return number

    def id_of_unique(self, text: str) -> int:
        """Return a new id for a text that occurs once.

        The text is not remembered: names of collectives are all different, and would fill memory.
        """
        number = self._next_id
        self._next_id += 1
        self.new.append((number, text))
        return number

    def column(self, batch: Batch | MarkerEvents, numbers: Column) -> Column:
        """Return the ids (int64) for a column that indexes the strings of its batch."""
        numbers = numbers.astype(np.intp)
        used = np.flatnonzero(np.bincount(numbers))
        table = np.zeros(len(batch.strings), np.int64)
        for index in used.tolist():
            table[index] = self.id_of(printable(batch.strings[index]))
        column: Column = table[numbers]
        return column


def signed_ids(column: Column) -> Column:
    """Return 32-bit device or stream ids as signed: MSPTI's invalid id becomes -1."""
    return column.astype(np.uint32).view(np.int32).astype(np.int64)


def constant_or_column(column: Column) -> Cell:
    """Return a column as it is, or its value where all are equal: that is cheaper to insert."""
    first = column[0]
    return int(first) if (column == first).all() else column


def finite_or_null(column: Column) -> Column:
    """Return real numbers (float64) with NaN, which SQLite stores as NULL, for what is not finite.

    JSON and Parquet have no other value for it, and SQLite's infinity breaks sums.
    """
    finite: Column = np.where(np.isfinite(column), column, np.nan)
    return finite


def global_tid(process_id: Column, thread_id: Column) -> Column:
    """Return process id in the upper, thread id in the lower 32 bits."""
    joined: Column = (process_id.astype(np.int64) << 32) | thread_id.astype(np.int64)
    return joined


def marker_connection(ids: Column) -> Column:
    """Return the connection ids that link markers with their tasks."""
    shifted: Column = as_signed(ids) + MARKER_CONNECTION_OFFSET
    return shifted
