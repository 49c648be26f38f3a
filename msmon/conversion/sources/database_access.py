"""Reading SQLite files that anybody may have made.

An SQL schema is a program: a view, a generated column or a trigger of a forged file would run
while it is read, and pages that point at one another hold endless tables or texts of a
gigabyte. So only real tables are read, without functions in the schema, and everything that
reading can cost is bounded by the size of the file:

* A row takes at least ``MIN_ROW_BYTES`` in a file, so a query has no more rows than fit.
* The texts of a query have no more bytes than the file, with some room for other encodings.
* SQLite's steps and its time are limited, for queries that never come to a row.
* A row has a greatest length: a small one, except where texts are read.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msmon.errors import SinkError
from msmon.sinks.sqlite.file import open_for_reading

MIN_ROW_BYTES = 6
"""A cell of a table has at least 4 bytes, and its page 2 more that point at it."""

MAX_TEXT_BYTES = 32 << 20
"""Longest row with texts. The group info of a large job is the longest text that occurs."""

MAX_NUMBERS_BYTES = 4096
"""Longest row of numbers. Those of an exported file have below 200 bytes."""

MAX_SCHEMA_BYTES = 1 << 20
"""Longest definition of a table."""

TEXT_BYTES_PER_BYTE = 2
"""UTF-16 in a file becomes up to one and a half times as many bytes of UTF-8."""

HEAP_BYTES = 512 << 20
"""Bound of all memory of SQLite, for Pythons before 3.11: they can't limit the length of texts."""

STEPS_AT_LEAST = 10_000_000
STEPS_PER_BYTE = 64
"""Ordinary files take below 10 steps a byte, joins and temporary indexes included."""

SECONDS_AT_LEAST = 60.0
SECONDS_PER_MIB = 1.0
"""Ordinary files are read at some 50 MiB a second."""

_STEPS_PER_CALL = 10_000
_ROWS_AT_ONCE = 1024


@dataclass
class _Budget:
    """What one query may still cost."""

    rows: int
    text_bytes: int
    steps: int
    seconds: float
    call_began_s: float = 0.0

    @classmethod
    def of(cls, size_bytes: int) -> _Budget:
        """Return the budget for a file of this size."""
        return cls(
            rows=size_bytes // MIN_ROW_BYTES,
            text_bytes=(1 << 20) + TEXT_BYTES_PER_BYTE * size_bytes,
            steps=STEPS_AT_LEAST + STEPS_PER_BYTE * size_bytes,
            seconds=SECONDS_AT_LEAST + SECONDS_PER_MIB * (size_bytes >> 20),
        )

    @property
    def is_spent(self) -> bool:
        """Whether the call of SQLite that runs now has to end."""
        elapsed_s = time.monotonic() - self.call_began_s
        return self.steps < 0 or elapsed_s > self.seconds


class ForgedDatabase(sqlite3.DatabaseError):
    """A file that costs more to read than its size can explain."""


class ReadOnlyDatabase:
    """One database file, opened for reading; a context manager.

    ``tables``: names of the tables that can be read: real ones, without generated columns.
    ``refused``: names of views and of the other tables; reading them would run the file's SQL.
    ``size_bytes``: size of the file and of its write-ahead log.
    """

    def __init__(self, path: Path) -> None:
        """Open the file. Raises sqlite3.Error, OSError, or SinkError for a log that is no file."""
        log_bytes = _log_bytes(path)
        self.size_bytes = path.stat().st_size + log_bytes
        self._budget = _Budget.of(self.size_bytes)
        self._connection = _open(path, has_log=log_bytes > 0)
        try:
            self._secure()
            names = self._names()
            self.tables = frozenset(name for name, real in names.items() if real)
            self.refused = frozenset(names) - self.tables
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> ReadOnlyDatabase:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def rows(self, sql: str, longest_row: int = MAX_NUMBERS_BYTES) -> Iterator[list[Any]]:
        """Yield the rows of a query, some hundred tuples at once. Raises sqlite3.Error."""
        self._budget = _Budget.of(self.size_bytes)
        self._limit_length(longest_row)
        cursor = self._calling(lambda: self._connection.execute(sql))
        while rows := self._calling(lambda: cursor.fetchmany(_ROWS_AT_ONCE)):
            self._budget.rows -= len(rows)
            if self._budget.rows < 0:
                raise ForgedDatabase("it has more rows than its size can hold")
            yield rows

    def _calling(self, call: Callable[[], Any]) -> Any:
        """Return what a call of SQLite returns; it is ended when its budget is spent."""
        budget = self._budget
        budget.call_began_s = time.monotonic()
        try:
            return call()
        except MemoryError as error:
            raise ForgedDatabase("reading it takes too much memory") from error
        except sqlite3.Error as error:
            if budget.is_spent:
                raise ForgedDatabase("reading it takes longer than its size explains") from error
            raise
        finally:
            budget.seconds -= time.monotonic() - budget.call_began_s

    def _limit_length(self, longest_row: int) -> None:
        if hasattr(self._connection, "setlimit"):  # Python 3.11
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest_row)

    def _text(self, data: bytes) -> str:
        """Called for each text that is read."""
        self._budget.text_bytes -= len(data)
        if self._budget.text_bytes < 0:
            raise ForgedDatabase("it has more text than its size can hold")
        return data.decode("utf-8", "backslashreplace")

    def _secure(self) -> None:
        """Switch off what a schema could do, before the schema is looked at."""
        connection = self._connection
        connection.text_factory = self._text
        connection.set_progress_handler(self._count_steps, _STEPS_PER_CALL)
        if hasattr(connection, "setlimit"):  # Python 3.11
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        else:
            connection.execute(f"PRAGMA hard_heap_limit={HEAP_BYTES}")
        if hasattr(connection, "setconfig"):  # Python 3.12
            for name, value in (("DEFENSIVE", 1), ("ENABLE_VIEW", 0), ("ENABLE_TRIGGER", 0)):
                connection.setconfig(getattr(sqlite3, f"SQLITE_DBCONFIG_{name}"), bool(value))
        for setting in ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON", "mmap_size=0"):
            connection.execute(f"PRAGMA {setting}")

    def _count_steps(self) -> bool:
        """Called by SQLite now and then; True ends the query."""
        self._budget.steps -= _STEPS_PER_CALL
        return self._budget.is_spent

    def _names(self) -> dict[str, bool]:
        """Return the name of every table and view, and whether it only holds stored values."""
        sql = (
            "SELECT name, type = 'table' AND rootpage > 0 FROM sqlite_master WHERE type != 'index'"
        )
        found = [row for rows in self.rows(sql, MAX_SCHEMA_BYTES) for row in rows]
        names = {}
        for name, is_table in found:
            if isinstance(name, str) and name.replace("_", "").isalnum():  # else none of ours
                names[name] = bool(is_table) and self._is_stored(name)
        return names

    def _is_stored(self, name: str) -> bool:
        sql = f'PRAGMA table_xinfo("{name}")'
        columns = [row for part in self.rows(sql, MAX_SCHEMA_BYTES) for row in part]
        return bool(columns) and all(hidden == 0 for *_, hidden in columns)


def _log_bytes(path: Path) -> int:
    """Return the size of the write-ahead log, 0 without one.

    Raises SinkError for one that is no regular file: SQLite would wait for ever at a pipe.
    """
    sizes = []
    for ending in ("-wal", "-shm"):
        beside = path.with_name(path.name + ending)
        try:
            found = beside.lstat()
        except FileNotFoundError:
            sizes.append(0)
            continue
        if not stat.S_ISREG(found.st_mode):
            raise SinkError(f"{beside} is no regular file", "remove it")
        sizes.append(found.st_size)
    return sizes[0]


def _open(path: Path, has_log: bool) -> sqlite3.Connection:
    """Open for reading. Without a write-ahead log nobody writes the file, and nothing is made
    beside it."""
    if has_log:
        return open_for_reading(path)
    name = quote(os.fsencode(path))
    return sqlite3.connect(f"file:{name}?mode=ro&immutable=1", uri=True)
