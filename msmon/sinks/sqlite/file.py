"""Opening an SQLite file for writing, also on file systems that lack what SQLite likes best.

A write-ahead log needs shared memory maps; a rollback journal still needs byte-range
locks. Network and cluster file systems may lack either, so the modes are tried in turn.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from msmon.errors import SinkError
from msmon.sinks.exports import require_opened

PAGE_BYTES = 32768
JOURNAL_LIMIT_BYTES = 64 << 20
CACHE_KIB = 32 << 10
READER_LIMIT_MS = 200
"""How long the end of a file waits for those who are reading it."""

_NO_LOCK_ERRORS = (errno.ENOLCK, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)

_log = logging.getLogger(__name__)
_said: set[str] = set()


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


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Return a connection without busy time-out and without implicit transactions.

    Raises SinkError: the file is locked, the disk is full, or no mode works.
    """
    reason = ""
    for mode in MODES if _locks_work(path.parent) else MODES[-1:]:
        try:
            connection = _open(path, mode)
        except sqlite3.Error as error:
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


def close_for_good(connection: sqlite3.Connection) -> None:
    """Close a file that is complete, without a write-ahead log: one plain file stays.

    While somebody reads it the log stays too; that costs nothing but a second file.
    """
    with contextlib.suppress(sqlite3.Error):
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


def _open(path: Path, mode: FileMode) -> sqlite3.Connection | None:
    """Open in one mode and try a write; None where the mode is not available."""
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw&vfs={mode.vfs}",
        uri=True,
        timeout=0.0,
        isolation_level=None,
    )
    try:
        connection.execute("PRAGMA schema_version")  # opens the file, and writes nothing yet
        require_opened(path)
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
        (journal_mode,) = connection.execute(f"PRAGMA journal_mode={mode.journal_mode}").fetchone()
        if journal_mode == mode.journal_mode:
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("PRAGMA trusted_schema=OFF")
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
