"""Parts for Python's ``logging``, for logs that contain text from other users.

The logs of agent and daemon and the audit log use them: a filter that limits the number of
lines, a formatter that keeps each record on one line, and a file of limited size.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path

LINES = 5
INTERVAL_S = 10.0
MAX_BUDGETS = 1000
MAX_LINE_CHARACTERS = 4000


def source_of(record: logging.LogRecord) -> Hashable:
    """Return the key of the budget that a record counts against, or None for no limit.

    Records of one log call about one user share a budget. The call names the user:
    ``_log.warning(..., extra={"owner": peer.owner})``. A record below WARNING that names no
    user isn't limited.
    """
    owner = getattr(record, "owner", None)
    if owner is None and record.levelno < logging.WARNING:
        return None
    return record.name, record.msg, owner


@dataclass
class _Budget:
    """How many records of one source were written and left out in its current interval."""

    start_s: float
    passed: int = 0
    left_out: int = 0


class RateFilter(logging.Filter):
    """Lets ``lines`` records of each source pass per interval, and counts the others.

    ``key`` returns the source of a record, or None for no limit. The first record of a later
    interval gets the number of those left out as ``record.left_out``, which
    :class:`OneLineFormatter` writes. Example with 5 lines per 10 s: of 100 equal records in
    one second five are written, and the next one after 10 s ends in "(95 more left out)".

    Any thread may use it. It takes no lock: if a job forked while a thread held the lock, it
    would stay locked in the child. So two threads at once may write one line too many.
    """

    def __init__(
        self,
        lines: int = LINES,
        interval_s: float = INTERVAL_S,
        key: Callable[[logging.LogRecord], Hashable] = source_of,
    ) -> None:
        super().__init__()
        self._lines = lines
        self._interval_s = interval_s
        self._key = key
        self._budgets: dict[Hashable, _Budget] = {}
        self.left_out = 0
        """Number of records left out so far, of all sources."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be written."""
        key = self._key(record)
        if key is None:
            return True
        budget = self._budget(key, time.monotonic())
        if budget.passed >= self._lines:
            budget.left_out += 1
            self.left_out += 1
            return False
        budget.passed += 1
        if budget.left_out:
            record.left_out = budget.left_out
            budget.left_out = 0
        return True

    def _budget(self, key: Hashable, now_s: float) -> _Budget:
        if key not in self._budgets and len(self._budgets) >= MAX_BUDGETS:
            self._forget_ended(now_s)
            if len(self._budgets) >= MAX_BUDGETS:
                key = None  # Too many sources at once: new ones share one budget.
        budget = self._budgets.setdefault(key, _Budget(now_s))
        if now_s - budget.start_s > self._interval_s:
            budget.start_s, budget.passed = now_s, 0
        return budget

    def _forget_ended(self, now_s: float) -> None:
        """Remove budgets whose interval is over. The next record of a source makes a new one."""
        self._budgets = {
            key: budget
            for key, budget in list(self._budgets.items())
            if now_s - budget.start_s <= self._interval_s
        }


def escaped(text: str) -> str:
    r"""Return the text as one line of at most MAX_LINE_CHARACTERS, control characters escaped.

    Otherwise a peer with the host name "node\n2026-01-01 ERROR" could write a line that looks
    like one of the daemon, and could send escape sequences to the reader's terminal.
    """
    if not text.isprintable():
        text = "".join(
            sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii")
            for sign in text
        )
    if len(text) > MAX_LINE_CHARACTERS:
        left_out = len(text) - MAX_LINE_CHARACTERS
        return f"{text[:MAX_LINE_CHARACTERS]}... ({left_out} characters more)"
    return text


class OneLineFormatter(logging.Formatter):
    """Writes one line for each record, and below it the indented lines of its traceback.

    Every line is :func:`escaped`, so text from peers can't begin a new one.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's name
        """Return the line of the record and the number of records left out before it."""
        left_out = getattr(record, "left_out", 0)
        note = f" ({left_out} more left out)" if left_out else ""
        return escaped(super().formatMessage(record)) + note

    def formatException(self, ei: object) -> str:  # logging's name
        """Return the traceback, each line indented."""
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return "\n".join(f"    {escaped(line)}" for line in lines)


class BoundedFile(RotatingFileHandler):
    """A log file below ``max_bytes``, and up to ``older_files`` older ones: ``name.1``, …

    The file is opened for each line. So no descriptor stays open in a job, and a file that
    was moved or removed is made again. The directory is made with the first line.

    The path may lie where other users can write. The file must be a regular file of this user
    with one name, and no link to it is followed: a FIFO would block the writer, and a link
    would lead to another file of this user. ``shared_place`` says that other users may
    also have made the directory; then no link to the directory is followed either.

    A line that can't be written raises nothing. ``unwritten`` counts it.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        older_files: int,
        mode: int = 0o600,
        shared_place: bool = False,
    ) -> None:
        self._permissions = mode
        self._directory_flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        if shared_place:
            self._directory_flags |= os.O_NOFOLLOW
        self.unwritten = 0
        """Number of lines that could not be written since the last one that was."""
        self.problem: OSError | None = None
        """Why the last line could not be written; None if it was."""
        super().__init__(path, maxBytes=max_bytes, backupCount=older_files, delay=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Append one line. ``logging`` holds the lock of the handler meanwhile."""
        failures = self.unwritten
        super().emit(record)
        stream, self.stream = self.stream, None
        if stream is not None:
            with contextlib.suppress(OSError):  # A full disk: ``handleError`` has counted it.
                stream.close()
        if self.unwritten == failures:
            self.unwritten, self.problem = 0, None

    def handleError(self, record: logging.LogRecord) -> None:  # logging's name
        """Count a line that could not be written. Without this, ``logging`` prints to stderr."""
        error = sys.exc_info()[1]
        self.unwritten += 1
        self.problem = error if isinstance(error, OSError) else OSError(str(error))

    def _open(self):  # type: ignore[no-untyped-def]  # logging's type differs by version
        path = Path(self.baseFilename)
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK
        directory = os.open(path.parent, self._directory_flags)
        try:
            descriptor = os.open(path.name, flags, self._permissions, dir_fd=directory)
        finally:
            os.close(directory)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
            os.close(descriptor)
            raise OSError(f"{path} is no regular file of this user's own")
        # not os.fdopen: eventlet may have replaced it
        return open(descriptor, "a", encoding="utf-8", errors="backslashreplace")
