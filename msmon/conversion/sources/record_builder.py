"""From single records, as files hold them, to batches of one kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from msmon.conversion.sources.checked_values import VALUE_ERRORS, text
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.layout import LAYOUTS, TEXT_FIELDS

RECORDS_PER_BATCH = 16_384

Row = Sequence[Any]
"""The values of one record, one per field of its layout and in the layout's order."""


class RecordBuilder:
    """Collects records of one kind, and gives them on as batches of ``RECORDS_PER_BATCH``.

    Values are checked a batch at a time, which numpy does fast. A record with a value that does
    not fit its field (a fraction, a text for a number, 2^32 in 32 bits) is left out and counted
    in ``skipped``.
    """

    def __init__(self, kind: ActivityKind, give: Callable[[Batch], None]) -> None:
        self.kind = kind
        self.skipped = 0
        self._fields = tuple(field.name for field in LAYOUTS[kind].fields)
        self._give = give
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        """Take a record."""
        self._rows.append(row)
        if len(self._rows) >= RECORDS_PER_BATCH:
            self.flush()

    def flush(self) -> None:
        """Give on what was collected, even if it is little."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        try:
            batch = self._batch(rows)
        except VALUE_ERRORS:
            usable = self._usable(rows)
            self.skipped += len(rows) - len(usable)
            if not usable:
                return
            batch = self._batch(usable)
        self._give(batch)

    def _usable(self, rows: list[Row]) -> list[Row]:
        """Return the rows that fit, found by halving: one bad row costs a few more tries only."""
        try:
            self._batch(rows)
        except VALUE_ERRORS:
            if len(rows) == 1:
                return []
            middle = len(rows) // 2
            return self._usable(rows[:middle]) + self._usable(rows[middle:])
        return rows

    def _batch(self, rows: list[Row]) -> Batch:
        """Return the rows as a batch. Raises one of VALUE_ERRORS where a value does not fit."""
        records = np.zeros(len(rows), DTYPES[self.kind])
        records["kind"] = self.kind
        ids: dict[str, int] = {"": 0}
        for field, values in zip(self._fields, zip(*rows)):
            if field in TEXT_FIELDS[self.kind]:
                records[field] = [ids.setdefault(_c_text(value), len(ids)) for value in values]
            else:
                records[field] = _numbers(values, records.dtype[field])
        return Batch(self.kind, records, tuple(ids))


def _c_text(value: Any) -> str:
    """Return a text as a record can hold it: valid Unicode without NUL, which ends a C string."""
    found = text(value).replace("\0", "\\x00")
    return found if found.isascii() else found.encode("utf-8", "backslashreplace").decode()


def _numbers(values: Sequence[Any], dtype: np.dtype[Any]) -> Any:
    """Return an array of shape (n,). numpy would cut or convert what does not fit; this raises."""
    if dtype.kind == "f":
        if not all(value is None or type(value) in (int, float) for value in values):
            raise TypeError("not a number")
        return np.array([np.nan if value is None else value for value in values], dtype)
    if not all(type(value) is int for value in values):
        raise TypeError("not a whole number")
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if min(values) < low or max(values) > high:
        raise OverflowError("out of range")
    return np.array(values, dtype)
