"""The JSONL files of one session: rotation, removal of old ones, and what is committed.

A session has one series of files, or one for each kind of line. Files of a series follow each
other: when one is full the next begins.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msmon.errors import SinkError
from msmon.sessions import SessionInfo
from msmon.sinks.base import Progress
from msmon.sinks.exports import identity_of, open_file, remove_file
from msmon.sinks.file_names import create_session_file
from msmon.sinks.jsonl.state import SeriesState, Written, resumed

MAX_NAMED = 16
"""More files than this are told as one pattern, say ``msmonitor_17_*_0.jsonl``."""

ALL_LINES = ""
"""Label of the series that holds the lines of every kind."""


@dataclass(frozen=True)
class Limits:
    """Lines of a file, and how many files of a series stay (-1: all)."""

    lines: int
    files: int


class FileSeries:
    """Writes whole lines into files of at most ``limits.lines`` lines.

    ``has_earlier``: an earlier daemon has written files of it. ``keep`` stores the state of the
    session. The thread of the sink writes the state. Methods raise SinkError or OSError; the
    object must then be made anew.
    """

    def __init__(
        self,
        session: SessionInfo,
        label: str,
        limits: Limits,
        state: SeriesState,
        has_earlier: bool,
        keep: Callable[[], None],
    ) -> None:
        self._session = session
        self._suffix = f"{label}.jsonl" if label else "jsonl"
        self._limits = limits
        self._directory = Path(session.settings.log_file)
        self._state = state
        self._keep = keep
        self._descriptor = -1
        self._lines = 0
        self._length = sum(item.length for item in state.open.values())
        self._made: deque[str] = deque(maxlen=MAX_NAMED)
        """Names of the newest files that exist, oldest first."""
        self._count = 0
        self._has_earlier = has_earlier and bool(state.digits)
        self.path = self._directory / self._name(state.digits)
        """The file being written, or the last one."""

    @property
    def written(self) -> tuple[str, ...]:
        """Absolute paths of the files; one pattern where they are many."""
        empty = self._length == 0  # an empty file is removed at the end, so it is not told
        names = list(self._made)[: -1 if empty else None]
        if self._has_earlier or self._count - empty > len(names):
            names = [self._name("*")]
        return tuple(str(self._directory / name) for name in names)

    @property
    def room(self) -> int:
        """Lines that the current file still takes, at least 1. A full file is replaced first."""
        if self._descriptor < 0 or self._lines >= self._limits.lines:
            self.open_next()
        return self._limits.lines - self._lines

    def write(self, text: bytes, line_count: int) -> None:
        """Append whole lines, no more than there is room for."""
        view = memoryview(text)
        while view:
            written = os.write(self._descriptor, view)
            view = view[written:]
        self._lines += line_count
        self._length += len(text)

    def note_length(self) -> None:
        """Bring the state up to date: all that is written is to be committed."""
        if self._descriptor >= 0:
            identity = identity_of(self._descriptor)
            self._state.open = {self.path.name: Written(self._length, *identity)}

    def end(self) -> None:
        """Close the current file, and remove it if it is empty."""
        if self._descriptor >= 0:
            self.close()
            if self._length == 0:
                remove_file(self.path)

    def close(self) -> None:
        """Close the current file; the series can be continued."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def open_next(self) -> None:
        """Begin a new file. The progress names it before there is data in it.

        So after a crash no file with data is unknown, and each can be cut back.
        """
        self.close()
        self._delete_oldest()
        path = create_session_file(self._session, self._suffix, self._state.digits)
        self._descriptor = open_file(path, os.O_WRONLY | os.O_APPEND)
        self._state.digits = path.name.split("_")[2]
        self._state.open[path.name] = Written(0, *identity_of(self._descriptor))
        if self._limits.files > 0:
            self._state.removable.append(path.name)
        self._keep()
        self.path, self._lines, self._length = path, 0, 0
        self._made.append(path.name)
        self._count += 1

    def _name(self, digits: str) -> str:
        process = self._session.process
        return f"msmonitor_{process.pid}_{digits}_{process.rank}.{self._suffix}"

    def _delete_oldest(self) -> None:
        """Make room for one more file; only files of this session are ever deleted."""
        removable = self._state.removable
        while self._limits.files > 0 and len(removable) >= self._limits.files:
            name = removable.pop(0)
            remove_file(self._directory / name)
            if name in self._made:
                self._made.remove(name)
            self._count = max(0, self._count - 1)


class SessionFiles:
    """All files of a session: one series, or one per label where ``per_kind``.

    The thread of the sink writes the state. Methods raise SinkError or OSError; the object must
    then be made anew.
    """

    def __init__(
        self, session: SessionInfo, limits: Limits, progress: Progress, per_kind: bool
    ) -> None:
        self._session = session
        self._limits = limits
        self._progress = progress
        self._per_kind = per_kind
        self._failure = ""
        self._changed = False
        """Whether something was written since the last commit."""
        self._series: dict[str, FileSeries] = {}
        directory = Path(session.settings.log_file)
        self.state = resumed(directory, session.session_id, progress)
        self._resumed = self.state.seq > 0
        if per_kind:
            name = f"msmonitor_{session.process.pid}_*_{session.process.rank}.*.jsonl"
            self._pattern = str(directory / name)
        elif self.state.ended:
            self._labelled(ALL_LINES)
        else:
            self._labelled(ALL_LINES).open_next()

    @property
    def first_told(self) -> tuple[str, ...]:
        """What to tell of the files before anything is written."""
        return (self._pattern,) if self._per_kind else (str(self._labelled(ALL_LINES).path),)

    @property
    def written(self) -> tuple[str, ...]:
        """Absolute paths of the session's files; one pattern where they are many."""
        return (self._pattern,) if self._per_kind else self._labelled(ALL_LINES).written

    @property
    def changed(self) -> bool:
        """Whether there is something to commit."""
        return self._changed

    def room(self, label: str) -> int:
        """Lines that the current file for lines of this kind still takes, at least 1."""
        with self._failing_for_good(label):
            return self._labelled(label).room

    def write(self, label: str, text: bytes, line_count: int) -> None:
        """Append whole lines of one kind, no more than there is room for."""
        self._changed = True
        with self._failing_for_good(label):
            self._labelled(label).write(text, line_count)

    def commit(self, seq: int, ended: bool) -> None:
        """Store in the progress what has been written, up to message ``seq``.

        ``ended``: it was the last message. Then all files are closed.
        """
        if self._failure:
            raise SinkError(self._failure)
        self.state.seq, self.state.ended = seq, ended
        for series in self._series.values():
            series.note_length()
        self._keep()
        self._changed = False
        if ended:
            for series in self._series.values():
                series.end()

    def close(self) -> None:
        """Close all files; the session can be continued."""
        for series in self._series.values():
            series.close()

    def _labelled(self, label: str) -> FileSeries:
        label = label if self._per_kind else ALL_LINES
        if label not in self._series:
            state = self.state.series.setdefault(label, SeriesState())
            self._series[label] = FileSeries(
                self._session, label, self._limits, state, self._resumed, self._keep_open
            )
        return self._series[label]

    def _keep_open(self) -> None:
        """Store that the session is open, with the file that was just begun."""
        self.state.ended = False
        self._keep()

    def _keep(self) -> None:
        self._progress.keep(self.state.to_json())

    @contextlib.contextmanager
    def _failing_for_good(self, label: str) -> Iterator[None]:
        """Let no commit follow a failure, since only a part of a message may have been written."""
        try:
            yield
        except OSError as error:
            self._failure = f"can't write {self._labelled(label).path}: {error.strerror}"
            raise


def line(fields: dict[str, Any]) -> bytes:
    """Return one compact line with sorted keys. Raises ValueError for nan and infinities."""
    text = json.dumps(
        fields, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return text.encode("utf-8", "backslashreplace") + b"\n"
