"""The audit log: who commanded what, when, and with which answer.

A JSON object per command, refused ones included, in ``audit.jsonl`` of the daemon's
state directory; a few older files are kept. Written by a thread of its own: a disk that
hangs delays nobody, and what it keeps from being written is counted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Union

from msmon.bus.messages import MonitorRequest, Refused, Reply, TraceRequest
from msmon.daemon.access.authentication import Peer

CommandRequest = Union[MonitorRequest, TraceRequest]
COMMAND_NAMES = {MonitorRequest: "npu-monitor", TraceRequest: "nputrace"}

AUDIT_FILE = "audit.jsonl"
FILE_LIMIT_BYTES = 8 << 20
FILES_KEPT = 4
"""Older files beside the current one: ``audit.jsonl.1`` is the newest of them."""
_MAX_WAITING = 1000

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
    """The audit log of one daemon. ``note`` never waits; ``close`` writes out the rest."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / AUDIT_FILE
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="msmon-audit")
        self._counting = threading.Lock()
        self._waiting = 0
        self._unwritten = 0
        self._failing = False

    def note(self, peer: Peer, request: CommandRequest, answer: Reply | Refused) -> None:
        """Have one command written down. Call on one thread only."""
        command = f"{COMMAND_NAMES[type(request)]} {request.action}"
        _log.info("%s: %s %s: %s", peer.name, command, request.fields, _in_short(answer))
        with self._counting:
            if self._waiting >= _MAX_WAITING:
                self._unwritten += 1
                return
            self._waiting += 1
        entry = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "who": peer.name,
            "role": peer.role.value,
            "pid": peer.pid,
            "command": command,
            "fields": request.fields,
            "selection": dataclasses.asdict(request.selection),
            **_answer_fields(answer),
        }
        self._writer.submit(self._write, entry)

    def close(self) -> None:
        """Wait until all is written."""
        self._writer.shutdown()

    def _write(self, entry: dict[str, Any]) -> None:
        unwritten = self._unwritten
        line = json.dumps({**entry, "unwritten_before": unwritten}) + "\n"
        change = 1
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._rotate()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            with os.fdopen(os.open(self._path, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(line)
            self._failing = False
            change = -unwritten
        except OSError as error:
            if not self._failing:
                _log.error("%s can't be written: %s", self._path, error.strerror)
            self._failing = True
        with self._counting:
            self._unwritten += change
            self._waiting -= 1

    def _rotate(self) -> None:
        """Make room for a line where the file is full."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_size < FILE_LIMIT_BYTES:
                return
        for number in range(FILES_KEPT, 0, -1):
            newer = self._path.with_name(f"{AUDIT_FILE}.{number - 1}") if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                newer.replace(self._path.with_name(f"{AUDIT_FILE}.{number}"))


def _in_short(answer: Reply | Refused) -> str:
    if isinstance(answer, Refused):
        return f"refused: {answer.reason}"
    said_yes = sum(bool(row.get("ok")) for row in answer.rows)
    return f"{answer.outcome}, {said_yes} of {len(answer.rows)} processes"


def _answer_fields(answer: Reply | Refused) -> dict[str, Any]:
    if isinstance(answer, Refused):
        return {"outcome": "refused", "text": answer.reason, "processes": []}
    kept = ("host", "pid", "rank", "job_id", "ok", "text", "session_id")
    rows = [{name: row[name] for name in kept if name in row} for row in answer.rows]
    return {"outcome": answer.outcome, "text": answer.text, "processes": rows}
