"""The audit log: who commanded what, when, and with which answer.

Each command is a JSON object on one line of a file in the daemon's state directory. Commands that
were carried out are in ``audit.jsonl``, refused ones in ``audit-refused.jsonl``. The files are
limited in size, and with one file a flood of refused commands would push the others out.

A refused command is written in short, and each owner has a share of lines
(``Resource.REFUSED_AUDIT_LINES``). The owner's next line counts those beyond the share. Each file
has a thread that writes it, so a disk that hangs delays no command; entries that could not be
written are counted.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import queue
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from typing import Any, Union

from msmon.bus.codec import as_fields
from msmon.bus.messages import MonitorRequest, Refused, Reply, TraceRequest
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.shares import Resource, Shares
from msmon.logs import BoundedFile

CommandRequest = Union[MonitorRequest, TraceRequest]
COMMAND_NAMES = {MonitorRequest: "npu-monitor", TraceRequest: "nputrace"}

AUDIT_FILE = "audit.jsonl"
FILE_LIMIT_BYTES = 8 << 20
FILES_KEPT = 4
"""Older files beside the current one: ``audit.jsonl.1`` is the newest of them."""
REFUSED_FILE = "audit-refused.jsonl"
REFUSED_FILES_KEPT = 1
REFUSED_CHARACTERS = 300
"""How much of the options and of the reason is written for a refused command."""
_MAX_ACTION_CHARACTERS = 20
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
        self._shares = shares or Shares()
        self._done = _Part(directory / AUDIT_FILE, FILES_KEPT)
        self._refused = _Part(directory / REFUSED_FILE, REFUSED_FILES_KEPT)
        self._left_out: Counter[str] = Counter()
        """Owner → number of refused commands that were left out since the owner's last line."""

    @property
    def unwritten(self) -> int:
        """Number of commands carried out that could not be written since the last one that was."""
        return self._done.file.unwritten_before

    def note(self, peer: Peer, request: CommandRequest, answer: Reply | Refused) -> None:
        """Queue one command for writing. Call it on one thread only."""
        if isinstance(answer, Refused):
            self._note_refused(peer, request, answer)
            return
        command = _command(request)
        _log.info("%s: %s %s: %s", peer.name, command, request.fields, _in_short(answer))
        entry = {
            **_who(peer, command),
            "fields": request.fields,
            "selection": dataclasses.asdict(request.selection),
            **_answer_fields(answer),
        }
        self._done.write(entry)

    def _note_refused(self, peer: Peer, request: CommandRequest, answer: Refused) -> None:
        """Queue a refused command in short, if its owner's share of lines isn't used up."""
        owner, command = peer.owner, _command(request)
        reason = answer.reason[:REFUSED_CHARACTERS]
        _log.info("%s: %s refused: %s", peer.name, command, reason, extra={"owner": owner})
        if not self._shares.try_take(owner, Resource.REFUSED_AUDIT_LINES):
            if owner in self._left_out or len(self._left_out) < _MAX_COUNTED_OWNERS:
                self._left_out[owner] += 1
            return
        entry = {
            **_who(peer, command),
            "fields": str(request.fields)[:REFUSED_CHARACTERS],
            "selection": {name: len(items) for name, items in vars(request.selection).items()},
            "outcome": "refused",
            "text": reason,
            "refused_before": self._left_out.pop(owner, 0),
        }
        self._refused.write(entry)

    def close(self) -> None:
        """Wait until all is written."""
        self._done.close()
        self._refused.close()


class _Part:
    """One file of the audit log, with its queue and the thread that empties it."""

    def __init__(self, path: Path, older_files: int) -> None:
        self._waiting = _Waiting()
        self.file = _AuditFile(path, older_files, self._waiting)
        self._writer = QueueListener(self._waiting.queue, self.file)
        self._writer.start()

    def write(self, entry: dict[str, Any]) -> None:
        self._waiting.handle(logging.makeLogRecord({"entry": entry}))

    def close(self) -> None:
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


def _command(request: CommandRequest) -> str:
    return f"{COMMAND_NAMES[type(request)]} {request.action[:_MAX_ACTION_CHARACTERS]}"


def _who(peer: Peer, command: str) -> dict[str, Any]:
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "who": peer.name,
        "role": peer.role.value,
        "pid": peer.pid,
        "command": command,
    }


def _in_short(answer: Reply) -> str:
    said_yes = sum(getattr(row, "ok", False) for row in answer.rows)
    return f"{answer.outcome}, {said_yes} of {len(answer.rows)} processes"


def _answer_fields(answer: Reply) -> dict[str, Any]:
    kept = ("host", "pid", "rank", "job_id", "ok", "text", "session_id")
    told = [as_fields(row) for row in answer.rows]
    rows = [{name: row[name] for name in kept if name in row} for row in told]
    return {"outcome": answer.outcome, "text": answer.text, "processes": rows}
