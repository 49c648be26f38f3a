"""Logs that stay small and honest whatever is written to them: parts for Python's ``logging``.

The agent's log, the daemon's log on stderr and the audit log are put together from these:
a filter that limits the rate of lines, a formatter that keeps a record on its line, and a
file of bounded size that is opened without following links.
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
    """Return what shares one budget of lines: a line of the program, and the user it is about.

    Whoever logs about a peer names its user: ``_log.warning(..., extra={"owner": peer.owner})``.
    None, which is not limited, for ordinary news (below WARNING) about nobody.
    """
    owner = getattr(record, "owner", None)
    if owner is None and record.levelno < logging.WARNING:
        return None
    return record.name, record.msg, owner


@dataclass
class _Budget:
    """What one source has written in its current interval."""

    start_s: float
    passed: int = 0
    left_out: int = 0


class RateFilter(logging.Filter):
    """Lets a few records of each source pass per interval, and counts the others.

    ``key`` tells the source of a record; None is never limited. The first record of a later
    interval carries the number that was left out as ``record.left_out``, and
    :class:`OneLineFormatter` writes it. Example with 5 lines per 10 s: of 100 equal lines
    in a second five are written, and the next one after 10 s ends in "(95 more left out)".

    Any thread may use it. It takes no lock, because a lock that is held while a job forks
    stays locked in the child; two threads at once may therefore write a line too many.
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
        """Records held back so far, of all sources."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record may be written."""
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
                key = None  # a flood of sources shares one budget
        budget = self._budgets.setdefault(key, _Budget(now_s))
        if now_s - budget.start_s > self._interval_s:
            budget.start_s, budget.passed = now_s, 0
        return budget

    def _forget_ended(self, now_s: float) -> None:
        """Drop the budgets of intervals that are over; the next record begins a new one."""
        self._budgets = {
            key: budget
            for key, budget in list(self._budgets.items())
            if now_s - budget.start_s <= self._interval_s
        }


def escaped(text: str) -> str:
    r"""Return the text on one line, with everything that doesn't print escaped.

    A host name "node\n2026-01-01 ERROR" of a peer would otherwise begin a line that looks
    like one of the daemon, and escape sequences would reach the reader's terminal.
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
    """One line for each record, and indented lines for a traceback that belongs to it.

    Every line is :func:`escaped`, so text from peers can begin none.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's name
        """Return the line of the record, with the number of those left out before it."""
        left_out = getattr(record, "left_out", 0)
        note = f" ({left_out} more left out)" if left_out else ""
        return escaped(super().formatMessage(record)) + note

    def formatException(self, ei: object) -> str:  # logging's name
        """Return the traceback, each line indented."""
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return "\n".join(f"    {escaped(line)}" for line in lines)


class BoundedFile(RotatingFileHandler):
    """A log file that stays below ``max_bytes``, with older ones beside it: ``name.1``, …

    The directory is made at the first line. The file is opened anew for each line: no
    descriptor stays open in a job, and a file that was moved away or removed is made again.
    Links are not followed, and only a regular file is taken that is ours and has no other
    name: a FIFO can't hang the writer, and a link can't lead it into another file of this
    user. With ``shared_place`` others may have made the directory too, so that is opened
    without following a link. What can't be written raises nothing; it is counted in ``unwritten``.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        older_files: int,
        mode: int = 0o600,
        shared_place: bool = False,
    ) -> None:
        """Raises nothing for a path that can't be written; see ``unwritten``."""
        self._permissions = mode
        self._directory_flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        if shared_place:
            self._directory_flags |= os.O_NOFOLLOW
        self.unwritten = 0
        """Lines that could not be written since the last one that could."""
        self.problem: OSError | None = None
        """Why the last line could not be written; None: it was."""
        super().__init__(path, maxBytes=max_bytes, backupCount=older_files, delay=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Append one line. ``logging`` calls this with the lock of the handler held."""
        failures = self.unwritten
        super().emit(record)
        stream, self.stream = self.stream, None
        if stream is not None:
            with contextlib.suppress(OSError):  # a full disk: the line is counted already
                stream.close()
        if self.unwritten == failures:
            self.unwritten, self.problem = 0, None

    def handleError(self, record: logging.LogRecord) -> None:  # logging's name
        """Count a line that could not be written; ``logging`` would print to stderr."""
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
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")
