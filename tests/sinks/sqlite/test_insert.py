"""Bulk insertion: every cell arrives in its row and column, however many rows there are."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from msmon.sinks.sqlite.insert import Counter, Rows, as_signed, insert
from msmon.sinks.sqlite.schema import Table

TABLE = Table("EXAMPLE", ("constant", "counter", "signed", "real REAL"))


@pytest.mark.parametrize("count", [1, 127, 128, 129, 500])
def test_constants_counters_and_columns(count: int) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute(TABLE.create_sql)
    signed = np.arange(count, dtype=np.int64) * 7 - 5
    real = np.arange(count) / 4
    cells = {"constant": 4294967295, "counter": Counter(40), "signed": signed, "real": real}
    insert(connection, Rows(TABLE, count, cells))
    rows = connection.execute("SELECT * FROM EXAMPLE ORDER BY counter").fetchall()
    connection.close()
    expected = zip([4294967295] * count, range(40, 40 + count), signed.tolist(), real.tolist())
    assert rows == list(expected)


def test_unsigned_values_are_recoverable() -> None:
    values = np.array([0, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    stored = as_signed(values).tolist()
    assert stored == [0, 2**63 - 1, -(2**63), -1]
    assert [number & (2**64 - 1) for number in stored] == values.tolist()
