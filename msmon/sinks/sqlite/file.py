"""Opening an SQLite file for writing, also on file systems that lack what SQLite needs.

A write-ahead log lets others read while we write, but needs memory maps that processes share. A
rollback journal needs only byte-range locks. Network and cluster file systems may lack either,
so three modes are tried in turn, down to one without locks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import sqlite3
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msmon.errors import SinkError
from msmon.sinks.exports import FileIdentity, identity_of, open_file, require_opened

PAGE_BYTES = 32768
JOURNAL_LIMIT_BYTES = 64 << 20
CACHE_KIB = 32 << 10
CHECKPOINT_S = 5.0
"""How often the log is brought into the file. A copy of the file alone lacks no more than that."""

READER_LIMIT_MS = 200
"""How long the end of a file waits for those who are reading it."""

STATEMENT_CPU_S = 20.0
"""CPU time after which a statement is interrupted.

Ours take a fraction of a second. One on a file where somebody planted a view or a column with an
endless expression would never end.
"""

_OPERATIONS_PER_LOOK = 1_000_000
_VALUE_BYTES = 128 << 20
_COMPUTED = re.compile(r"\bgenerated\s+always\b|\bas\s*\(", re.IGNORECASE)

_NO_LOCK_ERRORS = (errno.ENOLCK, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)

_log = logging.getLogger(__name__)
_said: set[str] = set()
"""Modes whose lack was logged already: once per process is enough."""


@dataclass(frozen=True)
class FileMode:
    """One way to open a database file. ``lacking``: what the file system then need not have."""

    vfs: str
    journal_mode: str
    lacking: str


MODES = (
    FileMode("unix", "wal", ""),
    FileMode("unix", "delete", "shared memory maps (readers and writer wait for each other)"),
    FileMode("unix-none", "delete", "file locks (reading during a write may fail)"),
)


class AlteredFile(SinkError):
    """The file is not as it was written: somebody else changed or replaced it."""


class GuardedConnection(sqlite3.Connection):
    """A connection to a file that a user can change while it is not open.

    Nothing in the file is run: its schema is not trusted, and a statement that takes more
    than ``STATEMENT_CPU_S`` is interrupted.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._until_cpu_s = 0.0
        super().execute("PRAGMA trusted_schema=OFF")
        if hasattr(self, "setconfig"):  # Python 3.12
            self.setconfig(getattr(sqlite3, "SQLITE_DBCONFIG_DEFENSIVE"), True)  # noqa: B009
        if hasattr(self, "setlimit"):  # Python 3.11
            self.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            self.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1)
            self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES)
        self.set_progress_handler(self._is_overdue, _OPERATIONS_PER_LOOK)

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """As sqlite3's, with a limit of CPU time."""
        self._until_cpu_s = time.process_time() + STATEMENT_CPU_S
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        """As sqlite3's, with a limit of CPU time."""
        self._until_cpu_s = time.process_time() + STATEMENT_CPU_S
        return super().executemany(*arguments)

    def close(self) -> None:
        """As sqlite3's."""
        self.set_progress_handler(None, 0)  # it refers to this object
        super().close()

    def _is_overdue(self) -> bool:
        return time.process_time() > self._until_cpu_s


def identity_at(path: Path) -> FileIdentity:
    """Return which file lies at a path. Raises what ``open_file`` raises.

    Not for a file that this process has open in SQLite: closing a second descriptor
    releases the locks of the first (fcntl(2)).
    """
    descriptor = open_file(path, os.O_RDONLY)
    try:
        return identity_of(descriptor)
    finally:
        os.close(descriptor)


def require_plain(connection: sqlite3.Connection, path: Path) -> None:
    """Raise AlteredFile where a file holds anything but tables of stored columns and indexes."""
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master"):
        text = str(sql or "")
        stored = kind == "index" or (kind == "table" and not _COMPUTED.search(text))
        if not stored or text.lower().startswith("create virtual"):
            raise AlteredFile(f"{path} holds {name!r}, which msmon did not put there")


def open_for_writing(path: Path, identity: FileIdentity) -> sqlite3.Connection:
    """Return a connection without busy time-out and without implicit transactions.

    Raises SinkError: the file is locked, the disk is full, or no mode works; AlteredFile:
    it is not the file meant by ``identity``, or no database.
    """
    reason = ""
    for mode in MODES if _locks_work(path.parent) else MODES[-1:]:
        try:
            connection = _open(path, mode, identity)
        except sqlite3.Error as error:
            if type(error) is sqlite3.DatabaseError:  # no database, or a torn one
                raise AlteredFile(f"{path}: {error}") from error
            reason = str(error)
            if _is_temporary(error):
                break
            continue
        if connection is None:
            continue
        if mode.lacking and mode.vfs + mode.journal_mode not in _said:
            _said.add(mode.vfs + mode.journal_mode)
            _log.warning("%s: the file system has no %s", path.parent, mode.lacking)
        return connection
    raise SinkError(f"can't write {path}: {reason}")


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Return a read-only connection. Raises sqlite3.Error."""
    return _open_read_only(path, "unix" if _locks_work(path.parent) else "unix-none")


def checkpoint(connection: sqlite3.Connection) -> None:
    """Bring into the file what is in its write-ahead log, as far as no reader is in the way.

    What can't be brought in now stays in the log, so an error loses nothing.
    """
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def close_for_good(connection: sqlite3.Connection) -> None:
    """Close a file without its uncommitted rows and without a write-ahead log: one file stays.

    While somebody reads it the log stays too; that costs nothing but a second file.
    """
    with contextlib.suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.rollback()
        connection.execute(f"PRAGMA busy_timeout={READER_LIMIT_MS}")
        connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()


def _is_temporary(error: sqlite3.Error) -> bool:
    """Whether trying again later, in the same mode, may help."""
    text = str(error)
    return "is locked" in text or "full" in text


def _locks_work(directory: Path) -> bool:
    """Try a byte-range lock: where there are none, SQLite can't tell that from a locked file."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _NO_LOCK_ERRORS
    return True


def _open_read_only(path: Path, vfs: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&vfs={vfs}", uri=True)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _open(path: Path, mode: FileMode, identity: FileIdentity) -> sqlite3.Connection | None:
    """Open in one mode and try a write; None where the mode is not available."""
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw&vfs={mode.vfs}",
        uri=True,
        timeout=0.0,
        isolation_level=None,
        factory=GuardedConnection,
    )
    try:
        connection.execute("PRAGMA schema_version")  # opens the file, and writes nothing yet
        require_opened(path, identity)
        require_plain(connection, path)
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
        (journal_mode,) = connection.execute(f"PRAGMA journal_mode={mode.journal_mode}").fetchone()
        if journal_mode == mode.journal_mode:
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
            connection.execute(f"PRAGMA journal_size_limit={JOURNAL_LIMIT_BYTES}")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS MSMON_STATE (name TEXT PRIMARY KEY, value)"
            )
            connection.execute("COMMIT")
            return connection
    except (sqlite3.Error, SinkError):
        connection.close()
        raise
    connection.close()
    return None
