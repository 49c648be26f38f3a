"""Building batches from values that come row by row, out of files that may be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.layout import LAYOUTS, TEXT_FIELDS

RECORDS_PER_BATCH = 16_384

VALUE_ERRORS = (TypeError, ValueError, OverflowError)
"""What a value that does not fit its field leads to."""


class BatchBuilder:
    """Collects rows of one kind and gives them on as batches of ``RECORDS_PER_BATCH``.

    A row has one value per field of ``fields``. Rows with a value that does not fit
    its field are left out and counted in ``skipped``.
    """

    def __init__(self, kind: ActivityKind, give: Callable[[Batch], None]) -> None:
        self.kind = kind
        self.skipped = 0
        self.fields = tuple(field.name for field in LAYOUTS[kind].fields)
        self._give = give
        self._rows: list[Sequence[Any]] = []

    def add(self, row: Sequence[Any]) -> None:
        """Take a row."""
        self._rows.append(row)
        if len(self._rows) >= RECORDS_PER_BATCH:
            self.flush()

    def flush(self) -> None:
        """Give on what was collected."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        try:
            batch = self._batch(rows)
        except VALUE_ERRORS:
            batch = self._batch([row for row in rows if self._fits(row)])
            self.skipped += len(rows) - len(batch)
        if len(batch):
            self._give(batch)

    def _fits(self, row: Sequence[Any]) -> bool:
        try:
            self._batch([row])
        except VALUE_ERRORS:
            return False
        return True

    def _batch(self, rows: Sequence[Sequence[Any]]) -> Batch:
        records = np.zeros(len(rows), DTYPES[self.kind])
        records["kind"] = self.kind
        ids: dict[str, int] = {"": 0}
        for field, values in zip(self.fields, zip(*rows)):
            if field in TEXT_FIELDS[self.kind]:
                records[field] = [ids.setdefault(_text(value), len(ids)) for value in values]
            else:
                records[field] = _numbers(values, records.dtype[field])
        return Batch(self.kind, records, tuple(ids))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    if value.isascii():
        return value
    return value.encode("utf-8", "backslashreplace").decode()


def _numbers(values: Sequence[Any], dtype: np.dtype[Any]) -> Any:
    """Return an array; a fraction, a text or a number out of range is an error, not cut."""
    if dtype.kind == "f":
        return np.array([np.nan if value is None else value for value in values], dtype)
    if not all(type(value) is int for value in values):
        raise TypeError("not a whole number")
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if min(values) < low or max(values) > high:
        raise OverflowError("out of range")
    return np.array(values, dtype)
