"""The audit log: who commanded what, when, and with which answer.

Each command is a JSON object on one line of a file in the daemon's state directory; see
``audit_lines``. A command that at least one process carried out is in ``audit.jsonl``. A command
that none carried out is in ``audit-refused.jsonl``: it was refused, matched nothing, or failed
everywhere. The files are limited in size, and with one file a flood of commands without any effect
would push the others out.

Each owner has a share of the lines of each file (``Resource.AUDIT_LINES``,
``Resource.REFUSED_AUDIT_LINES``). The owner's next line counts those beyond the share. Who may
only command the own processes can thus hide no more than what it did to them. Each file
has a thread that writes it, so a disk that hangs delays no command; entries that could not be
written are counted.
"""

from __future__ import annotations

import json
import logging
import os
import queue
from collections import Counter
from collections.abc import Mapping
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from typing import Any

from msmon.bus.messages import Refused, Reply
from msmon.bus.words import Outcome
from msmon.daemon.access.audit_lines import (
    CommandRequest,
    command_of,
    done_line,
    reason_of,
    refused_line,
    said_yes,
)
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.shares import Resource, Shares
from msmon.logs import BoundedFile

AUDIT_FILE = "audit.jsonl"
FILE_LIMIT_BYTES = 8 << 20
FILES_KEPT = 4
"""Older files beside the current one: ``audit.jsonl.1`` is the newest of them."""
REFUSED_FILE = "audit-refused.jsonl"
REFUSED_FILES_KEPT = 1
_MAX_WAITING = 1000
_MAX_COUNTED_OWNERS = 1000

_log = logging.getLogger("msmon.audit")


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory in which a daemon keeps what must outlive it, as the audit log."""
    if environ.get("MSMON_STATE_DIR"):
        return Path(environ["MSMON_STATE_DIR"]).absolute()
    if environ.get("STATE_DIRECTORY"):  # set by systemd; colons separate several
        return Path(environ["STATE_DIRECTORY"].partition(":")[0])
    if environ.get("MSMON_KEYS_DIR"):
        return Path(environ["MSMON_KEYS_DIR"]).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/msmon")
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "msmon"


class AuditLog:
    """The audit log of one daemon. ``note`` never waits; ``close`` waits until all is written.

    The broker's thread writes this object's state. The threads of the two ``_Part`` write the
    files.
    """

    def __init__(self, directory: Path, shares: Shares | None = None) -> None:
        shares = shares or Shares()
        self._done = _Part(directory / AUDIT_FILE, FILES_KEPT, Resource.AUDIT_LINES, shares)
        self._refused = _Part(
            directory / REFUSED_FILE, REFUSED_FILES_KEPT, Resource.REFUSED_AUDIT_LINES, shares
        )

    @property
    def unwritten(self) -> int:
        """Number of commands carried out that could not be written since the last one that was."""
        return self._done.file.unwritten_before

    def note(self, peer: Peer, request: CommandRequest, answer: Reply | Refused) -> None:
        """Queue one command for writing. Call it on one thread only."""
        command, yes, owner = command_of(request), said_yes(answer), {"owner": peer.owner}
        if isinstance(answer, Refused) or not (yes or answer.outcome is Outcome.OK):
            outcome = "refused" if isinstance(answer, Refused) else answer.outcome
            _log.info(
                "%s: %s not done: %s: %s",
                peer.name,
                command,
                outcome,
                reason_of(answer),
                extra=owner,
            )
            if self._refused.takes(peer.owner):
                self._refused.write(peer.owner, refused_line(peer, request, answer))
            return
        told = f"{answer.outcome}, {yes} of {len(answer.rows)} processes"
        _log.info("%s: %s %s: %s", peer.name, command, request.fields, told, extra=owner)
        if self._done.takes(peer.owner):
            self._done.write(peer.owner, done_line(peer, request, answer))

    def close(self) -> None:
        """Wait until all is written."""
        self._done.close()
        self._refused.close()


class _Part:
    """One file of the audit log, with its queue and the thread that empties it.

    The broker's thread writes this object's state.
    """

    def __init__(self, path: Path, older_files: int, resource: Resource, shares: Shares) -> None:
        self._resource = resource
        self._shares = shares
        self._left_out: Counter[str] = Counter()
        """Owner → number of commands that were left out since the owner's last line."""
        self._waiting = _Waiting()
        self.file = _AuditFile(path, older_files, self._waiting)
        self._writer = QueueListener(self._waiting.queue, self.file)
        self._writer.start()

    def takes(self, owner: str) -> bool:
        """Take a line from the owner's share; if it is used up, count the command as left out."""
        if self._shares.try_take(owner, self._resource):
            return True
        if owner in self._left_out or len(self._left_out) < _MAX_COUNTED_OWNERS:
            self._left_out[owner] += 1
        return False

    def write(self, owner: str, entry: dict[str, Any]) -> None:
        """Queue an entry, with the number of the owner's commands left out before it."""
        entry = {**entry, "left_out_before": self._left_out.pop(owner, 0)}
        self._waiting.handle(logging.makeLogRecord({"entry": entry}))

    def close(self) -> None:
        """Wait until all is written."""
        self._writer.stop()


class _Waiting(QueueHandler):
    """The queue to the writing thread. Entries that find no room are counted."""

    queue: queue.Queue[logging.LogRecord]

    def __init__(self) -> None:
        super().__init__(queue.Queue())
        self.lost = 0
        """Entries that found no room. The broker's thread writes it."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return the record unchanged, because :class:`_AuditFile` formats it."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Put an entry into the queue if there is room.

        The queue itself has no limit, so that the mark of its end always finds room.
        """
        if self.queue.qsize() >= _MAX_WAITING:
            self.lost += 1
        else:
            self.queue.put_nowait(record)


class _AuditFile(BoundedFile):
    """One file with a JSON object on each line. Only the writing thread changes its state."""

    def __init__(self, path: Path, older_files: int, waiting: _Waiting) -> None:
        super().__init__(path, FILE_LIMIT_BYTES, older_files)
        self._waiting = waiting
        self._told_lost = 0
        """How many of ``waiting.lost`` the entries in the file have reported."""

    @property
    def unwritten_before(self) -> int:
        """Entries that are missing between the last one in the file and the next."""
        return self.unwritten + self._waiting.lost - self._told_lost

    def emit(self, record: logging.LogRecord) -> None:
        """Append an entry and, in it, the number of entries missing before it."""
        failed_before, lost = self.problem is not None, self._waiting.lost
        missing = self.unwritten + lost - self._told_lost
        record.msg = json.dumps({**vars(record)["entry"], "unwritten_before": missing})
        super().emit(record)
        if self.problem is None:
            self._told_lost = lost
        elif not failed_before:
            reason = self.problem.strerror or self.problem
            _log.error("%s can't be written: %s", self.baseFilename, reason)
