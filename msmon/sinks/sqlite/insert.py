"""Inserting columns into a table, many rows per statement.

Binding values one by one is what costs time. So a statement holds many rows, constants
stand in its text, and a counter is bound once per statement and added to in SQL. Two rows with
a bound column, the constant 7 and a counter become::

    INSERT INTO STEP_TIME VALUES (?2,7,?1+0),(?3,7,?1+1)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Union

import numpy as np

from msmon.records.batch import Column
from msmon.sinks.sqlite.schema import Table

MAX_ROWS_PER_STATEMENT = 128
MAX_BOUND_VALUES = 999
"""SQLite's limit before version 3.32."""


@dataclass(frozen=True)
class Counter:
    """A column that counts on from ``first``."""

    first: int


Cell = Union[int, Counter, Column]
"""A column of rows to insert: one constant, a counter, or an array of shape (n,)."""


@dataclass(frozen=True)
class Rows:
    """Rows for one table; ``cells`` has one entry per column of the table."""

    table: Table
    count: int
    cells: Mapping[str, Cell]


def as_signed(values: Column) -> Column:
    """Return integers as int64; unsigned values from 2^63 on become value - 2^64."""
    signed: Column = np.ascontiguousarray(values)
    return signed.view(np.int64) if signed.dtype == np.uint64 else signed.astype(np.int64)


def insert(connection: sqlite3.Connection, rows: Rows) -> None:
    """Insert rows. Raises what sqlite3 raises."""
    cells = [rows.cells[name] for name in rows.table.column_names]
    layout = tuple("*" if isinstance(c, np.ndarray) else _layout_of(c) for c in cells)
    bound_per_row = max(1, layout.count("*"))
    per_chunk = min(MAX_ROWS_PER_STATEMENT, (MAX_BOUND_VALUES - len(layout)) // bound_per_row)
    whole = rows.count - rows.count % per_chunk
    for begin, end, per_statement in ((0, whole, per_chunk), (whole, rows.count, 1)):
        if begin < end:
            bound = _bound_values(cells, begin, end, per_statement)
            connection.executemany(_statement(rows.table, layout, per_statement), bound)


def _layout_of(cell: int | Counter) -> str:
    return "+" if isinstance(cell, Counter) else str(cell)


def _bound_values(cells: list[Cell], begin: int, end: int, per_statement: int) -> list[list[Any]]:
    """Return a list of values per statement: the counters' starts, then the rows' values."""
    arrays = [cell[begin:end] for cell in cells if isinstance(cell, np.ndarray)]
    counters = [cell for cell in cells if isinstance(cell, Counter)]
    statements = (end - begin) // per_statement
    if any(array.dtype == object or array.dtype.kind == "f" for array in arrays):
        table: Column = np.empty((statements, len(counters) + per_statement * len(arrays)), object)
    else:
        table = np.empty((statements, len(counters) + per_statement * len(arrays)), np.int64)
    for place, counter in enumerate(counters):
        first = counter.first + begin
        table[:, place] = range(first, first + (end - begin), per_statement)
    for place, array in enumerate(arrays, len(counters)):
        table[:, place :: len(arrays)] = _as_bound(array).reshape(statements, per_statement)
    values: list[list[Any]] = table.tolist()
    return values


def _as_bound(array: Column) -> Column:
    return array if array.dtype == object or array.dtype.kind == "f" else as_signed(array)


@lru_cache(maxsize=512)
def _statement(table: Table, layout: tuple[str, ...], row_count: int) -> str:
    """Return the INSERT. In ``layout`` "*" is a column, "+" a counter, other texts constants."""
    counters = layout.count("+")
    bound = layout.count("*")
    rows = []
    for row in range(row_count):
        number = counters + row * bound
        texts = []
        counted = 0
        for cell in layout:
            if cell == "*":
                number += 1
                texts.append(f"?{number}")
            elif cell == "+":
                counted += 1
                texts.append(f"?{counted}+{row}")
            else:
                texts.append(cell)
        rows.append(f"({','.join(texts)})")
    return f"INSERT INTO {table.name} VALUES {','.join(rows)}"
