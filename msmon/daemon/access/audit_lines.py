"""What a line of the audit log says of a command. A line never exceeds ``MAX_LINE_BYTES``.

The caller decides how long its request is, and the answer may have a row for each of thousands of
processes. Control characters grow in JSON: 50 KB of them make a line of 300 KB. So each text is
cut to a length in JSON. Of long lists there are counts and the first items.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Union

from msmon.bus.messages import MonitorRequest, Refused, Reply, Selection, TraceRequest
from msmon.bus.rows import AnswerRow, MissingRow
from msmon.daemon.access.authentication import Peer

CommandRequest = Union[MonitorRequest, TraceRequest]
COMMAND_NAMES = {MonitorRequest: "npu-monitor", TraceRequest: "nputrace"}

MAX_LINE_BYTES = 4096
EXAMPLES = 10
"""How many items of each list of a selection are written."""
REFUSED_BYTES = 300
"""How much of the options and of the reason is written for a refused command."""
_FIELDS_BYTES = 1000
_TEXT_BYTES = 500
_NAME_BYTES = 64
_ROW_TEXT_BYTES = 200
_RESERVED_BYTES = 150
"""For what the writing thread adds: counts of what is missing before the line."""


def command_of(request: CommandRequest) -> str:
    """Return the command as the log names it. Example: "npu-monitor start"."""
    return f"{COMMAND_NAMES[type(request)]} {_cut(request.action, 20)}"


def said_yes(answer: Reply | Refused) -> int:
    """Return the number of processes that carried the command out."""
    return 0 if isinstance(answer, Refused) else sum(row.ok for row in answer.answer_rows)


def reason_of(answer: Reply | Refused) -> str:
    """Return why no process carried the command out, in at most ``REFUSED_BYTES`` of JSON."""
    if isinstance(answer, Refused):
        return _cut(answer.reason, REFUSED_BYTES)
    texts = (answer.text, *(row.text for row in answer.answer_rows))
    return _cut(next(filter(None, texts), ""), REFUSED_BYTES)


def done_line(peer: Peer, request: CommandRequest, answer: Reply) -> dict[str, Any]:
    """Return the entry of a command that at least one process carried out.

    ``processes`` has as many rows as the line has room for, and ``process_count`` counts all.
    """
    rows = answer.answer_rows
    entry = {
        **_who(peer, request),
        **_order(request),
        "fields": _fields(request.fields, _FIELDS_BYTES),
        "selection": _examples(request.selection),
        "selected": _counts(request.selection),
        "outcome": str(answer.outcome),
        "text": _cut(answer.text, _TEXT_BYTES),
        "process_count": len(rows),
        "said_yes": said_yes(answer),
    }
    room_bytes = MAX_LINE_BYTES - _RESERVED_BYTES - len(json.dumps(entry))
    return {**entry, "processes": _first_rows(rows, room_bytes)}


def refused_line(peer: Peer, request: CommandRequest, answer: Reply | Refused) -> dict[str, Any]:
    """Return the entry of a command that no process carried out, in short."""
    return {
        **_who(peer, request),
        "fields": _cut(str(request.fields), REFUSED_BYTES),
        "selection": _counts(request.selection),
        "outcome": "refused" if isinstance(answer, Refused) else str(answer.outcome),
        "text": reason_of(answer),
    }


def _who(peer: Peer, request: CommandRequest) -> dict[str, Any]:
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "who": peer.name,
        "role": peer.role.value,
        "pid": peer.pid,
        "command": command_of(request),
    }


def _order(request: CommandRequest) -> dict[str, str]:
    """Return the name of the standing order that a command gives, carries out or ends."""
    name = request.name if isinstance(request, MonitorRequest) else ""
    return {"order": _cut(name, _NAME_BYTES)} if name else {}


def _fields(fields: Mapping[str, Any], most_bytes: int) -> dict[str, Any] | str:
    """Return the options as they are, or as a text that is cut if they are too long."""
    if len(json.dumps(fields)) <= most_bytes:
        return dict(fields)
    return _cut(str(fields), most_bytes)


def _counts(selection: Selection) -> dict[str, int]:
    return {name: len(items) for name, items in vars(selection).items()}


def _examples(selection: Selection) -> dict[str, list[Any]]:
    """Return the first items of each list of a selection."""
    return {
        "pids": selection.pids[:EXAMPLES],
        "ranks": selection.ranks[:EXAMPLES],
        "job_ids": [_cut(job_id, _NAME_BYTES) for job_id in selection.job_ids[:EXAMPLES]],
    }


def _first_rows(rows: list[AnswerRow | MissingRow], room_bytes: int) -> list[dict[str, Any]]:
    """Return what the first rows tell, as many as there is room for."""
    told: list[dict[str, Any]] = []
    for row in rows:
        entry = _row(row)
        room_bytes -= len(json.dumps(entry)) + len(", ")
        if room_bytes < 0:
            break
        told.append(entry)
    return told


def _row(row: AnswerRow | MissingRow) -> dict[str, Any]:
    kept = ("host", "pid", "rank", "job_id", "ok", "text", "session_id")
    told = {name: getattr(row, name, None) for name in kept}
    return {
        name: _cut(value, _ROW_TEXT_BYTES if name == "text" else _NAME_BYTES)
        if isinstance(value, str)
        else value
        for name, value in told.items()
        if value is not None
    }


def _cut(text: str, most_bytes: int) -> str:
    """Return the beginning of a text that takes at most so many bytes between JSON's quotes."""
    text = text[:most_bytes]
    while len(json.dumps(text)) - len('""') > most_bytes:
        text = text[: len(text) * 3 // 4]
    return text
