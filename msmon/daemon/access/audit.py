"""The audit log: who commanded what, when, and with which answer.

A JSON object per command, in the daemon's state directory. What users did is in
``audit.jsonl``, what they were refused in ``audit-refused.jsonl``: a flood of refused commands
pushes nothing out of the first. Of each file a few older ones are kept. A refused command is
written in short, and each owner has a share of lines (``Resource.REFUSED_AUDIT_LINES``); what
is left out is counted in the owner's next line. Each file has a thread that writes: a disk that
hangs delays nobody, and what it keeps from being written is counted.
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
"""Of the options and of the reason that a refused command is written with."""
_MAX_ACTION_CHARACTERS = 20
_MAX_WAITING = 1000
_MAX_COUNTED_OWNERS = 1000

_log = logging.getLogger("msmon.audit")


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return where a daemon keeps its audit log; one with keys of its own keeps it with them."""
    if environ.get("MSMON_STATE_DIR"):
        return Path(environ["MSMON_STATE_DIR"]).absolute()
    if environ.get("STATE_DIRECTORY"):  # systemd's; several are separated by colons
        return Path(environ["STATE_DIRECTORY"].partition(":")[0])
    if environ.get("MSMON_KEYS_DIR"):
        return Path(environ["MSMON_KEYS_DIR"]).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/msmon")
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "msmon"


class AuditLog:
    """The audit log of one daemon. ``note`` never waits; ``close`` writes out the rest.

    The broker's thread notes commands. The threads of the two ``_Part`` write them.
    """

    def __init__(self, directory: Path, shares: Shares | None = None) -> None:
        self._shares = shares or Shares()
        self._done = _Part(directory / AUDIT_FILE, FILES_KEPT)
        self._refused = _Part(directory / REFUSED_FILE, REFUSED_FILES_KEPT)
        self._left_out: Counter[str] = Counter()
        """Owner → refused commands since the last one of the owner that was written."""

    @property
    def unwritten(self) -> int:
        """Commands carried out that could not be written down since the last one that could."""
        return self._done.file.unwritten_before

    def note(self, peer: Peer, request: CommandRequest, answer: Reply | Refused) -> None:
        """Have one command written down. Call on one thread only."""
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
        """Have a refused command written in short, while its owner has lines left."""
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
    """One file of the audit log, its queue and the thread that empties it."""

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
    """The entries on their way to the writing thread. Those without room are counted."""

    queue: queue.Queue[logging.LogRecord]

    def __init__(self) -> None:
        super().__init__(queue.Queue())
        self.lost = 0
        """Entries that found no room. The broker's thread writes it."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return the record as it is: the file makes its line."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Let an entry wait. The bound is not the queue's own, so that the end always fits in."""
        if self.queue.qsize() >= _MAX_WAITING:
            self.lost += 1
        else:
            self.queue.put_nowait(record)


class _AuditFile(BoundedFile):
    """The file, a JSON object per line. The writing thread writes its state."""

    def __init__(self, path: Path, older_files: int, waiting: _Waiting) -> None:
        super().__init__(path, FILE_LIMIT_BYTES, older_files)
        self._waiting = waiting
        self._told_lost = 0
        """How many of ``waiting.lost`` an entry in the file tells of."""

    @property
    def unwritten_before(self) -> int:
        """Entries that are missing between the last one in the file and the next."""
        return self.unwritten + self._waiting.lost - self._told_lost

    def emit(self, record: logging.LogRecord) -> None:
        """Append an entry that says how many are missing before it."""
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
