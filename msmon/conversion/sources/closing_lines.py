"""Which JSONL files belong to one session, by the last line of a session's last file.

Names of files hold pid, time and rank. A pid comes again, after a restart of the job or of the
machine, and one process may have several sessions. So equal names don't make one session. What
ends a session is its closing line, of kind ``rank_device_map``. msmon's tells the session, its
host and its span; msMonitor's tells rank and devices only.

Example: rank 0 had pid 17 in two jobs, and the files are A, B, C, D in the order of their
names. B and D have closing lines. So A and B are the first session, C and D the second.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msmon.conversion.sources import checked_values as checked
from msmon.conversion.sources.checked_values import VALUE_ERRORS
from msmon.sinks.regular_files import open_regular

_END_BYTES = 64 << 10
"""What is read of the beginning and of the end of a file. A closing line has some 200 bytes."""

MAX_ID_CHARACTERS = 255


@dataclass(frozen=True)
class Closing:
    """What a closing line tells; what it lacks is empty or 0."""

    session: str = ""
    host: str = ""
    start_ns: int = 0
    end_ns: int = 0
    """Wall clock of the session's begin and end."""


@dataclass
class SessionPaths:
    """The files of one session, in the order in which they are to be read."""

    paths: list[Path] = field(default_factory=list)
    closing: Closing | None = None
    """None: the session has not ended, or its last file is not here."""


def by_session(paths: Sequence[Path]) -> list[SessionPaths]:
    """Return the sessions that files of one pid and rank belong to. Raises OSError.

    ``paths`` are sorted by the time in their names. A file without a closing line belongs to the
    session in whose span its first record lies. Where no session's span tells, it belongs to
    that of the next closing line.
    """
    closings = {path: closing for path in paths if (closing := _closing_of(path)) is not None}
    if not closings:
        return [SessionPaths(list(paths))]
    sessions: dict[str, SessionPaths] = {}
    waiting: list[Path] = []
    for path in paths:
        closing = closings.get(path)
        if closing is None:
            closing = _only_span_around(_first_time_ns(path), closings.values())
            if closing is None:
                waiting.append(path)
                continue
            of_session = sessions.setdefault(closing.session, SessionPaths())
        else:
            of_session = sessions.setdefault(closing.session or str(path), SessionPaths())
            of_session.paths += waiting
            waiting = []
        of_session.closing = closing
        of_session.paths.append(path)
    found = list(sessions.values())
    if waiting:
        found.append(SessionPaths(waiting))
    place = {path: number for number, path in enumerate(paths)}
    for item in found:
        item.paths.sort(key=place.__getitem__)
    return found


def _only_span_around(time_ns: int, closings: Iterable[Closing]) -> Closing | None:
    around = {item for item in closings if item.session and item.start_ns <= time_ns <= item.end_ns}
    return around.pop() if len({item.session for item in around}) == 1 else None


def _closing_of(path: Path) -> Closing | None:
    values = _parsed(_lines_at(path, at_end=True)[-1:])
    if not values or values[0].get("kind") != "rank_device_map":
        return None
    try:
        return Closing(
            checked.text(values[0].get("session", ""), MAX_ID_CHARACTERS),
            checked.text(values[0].get("host", ""), MAX_ID_CHARACTERS),
            checked.whole(values[0].get("startNs", 0), 0, checked.MAX_TIME_NS),
            checked.whole(values[0].get("endNs", 0), 0, checked.MAX_TIME_NS),
        )
    except VALUE_ERRORS:
        return Closing()


def _first_time_ns(path: Path) -> int:
    """Return the end of the file's first record that has one; 0 where none is found."""
    for values in _parsed(_lines_at(path, at_end=False)):
        end_ns = values.get("endNs")
        if type(end_ns) is int and values.get("kind") != "gap":
            return end_ns
    return 0


def _lines_at(path: Path, at_end: bool) -> list[bytes]:
    """Return the lines at the beginning or the end of a file, the torn ones among them."""
    with open(open_regular(path, os.O_RDONLY, follow=True), "rb") as file:
        if at_end:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _END_BYTES))
        return file.read(_END_BYTES).splitlines()


def _parsed(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    found = []
    for line in lines:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict):
            found.append(values)
    return found
