"""The JSONL files of one session: rotation, removal of old ones, and how it goes on after a crash.

The session's progress says how many bytes of which files are committed. After a crash each file
is cut back to its committed length, so no line is torn or there twice. The session then goes on
in a new file. Only files that the progress names are ever cut or removed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from msmon.errors import SinkError
from msmon.sessions import SessionInfo
from msmon.sinks.base import Progress
from msmon.sinks.exports import FileIdentity, identity_of, open_file, remove_file
from msmon.sinks.file_names import create_session_file

_log = logging.getLogger(__name__)

MAX_NAMED = 16
"""More files than this are told as one pattern, say ``msmonitor_17_*_0.jsonl``."""


@dataclass
class Written:
    """Which file it is, and how many bytes of it are committed."""

    length: int
    device: int
    inode: int


@dataclass
class FilesState:
    """What must survive a crash of the daemon. The progress holds it as JSON."""

    directory: str
    seq: int = 0
    digits: str = ""
    """The 17 digits of time in the name of the last file."""
    open: dict[str, Written] = field(default_factory=dict)
    """Files written to since the last commit, by name."""
    removable: list[str] = field(default_factory=list)
    """Earlier files, oldest first; only when old files are deleted."""
    devices: list[int] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    markers: list[str] = field(default_factory=list)
    """Frames of the markers that still wait for their other half, in base 64."""

    @classmethod
    def from_json(cls, text: bytes) -> FilesState:
        """Read what :meth:`to_json` wrote. Raises ValueError or TypeError."""
        fields = json.loads(text)
        fields["open"] = {name: Written(**item) for name, item in fields["open"].items()}
        return cls(**fields)

    def to_json(self) -> bytes:
        """Return the text to keep."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


class RotatedFiles:
    """Writes whole lines into files of at most ``line_limit`` lines.

    ``file_limit``: how many files stay, -1: all. The thread of the sink writes the state. Methods
    raise SinkError or OSError; the object must then be made anew.
    """

    def __init__(
        self, session: SessionInfo, line_limit: int, file_limit: int, progress: Progress
    ) -> None:
        self._session = session
        self._line_limit = line_limit
        self._file_limit = file_limit
        self._directory = Path(session.settings.log_file)
        self._progress = progress
        self._descriptor = -1
        self._failure = ""
        self._path = Path()
        self._lines = 0
        self._length = 0
        self._changed = False
        """Whether something was written since the last commit."""
        self._made: deque[str] = deque(maxlen=MAX_NAMED)
        """Names of the newest files that exist, oldest first."""
        self._count = 0
        self.state = self._resume()
        self._has_earlier = self.state.seq > 0
        if self.state.ended:
            self._path = self._directory / self._last_name()
            self._length = sum(item.length for item in self.state.open.values())
        else:
            self._open_next()

    @property
    def path(self) -> Path:
        """The file being written."""
        return self._path

    @property
    def written(self) -> tuple[str, ...]:
        """Absolute paths of the session's files; one pattern where they are many."""
        empty = self._length == 0  # an empty file is removed at the end, so it is not told
        names = list(self._made)[: -1 if empty else None]
        if self._has_earlier or self._count - empty > len(names):
            process = self._session.process
            names = [f"msmonitor_{process.pid}_*_{process.rank}.jsonl"]
        return tuple(str(self._directory / name) for name in names)

    @property
    def changed(self) -> bool:
        """Whether there is something to commit."""
        return self._changed

    @property
    def room(self) -> int:
        """Lines that the current file still takes, at least 1. A full file is replaced first."""
        if self._descriptor < 0 or self._lines >= self._line_limit:
            with self._failing_for_good():
                self._open_next()
        return self._line_limit - self._lines

    def write(self, text: bytes, line_count: int) -> None:
        """Append whole lines, no more than there is room for."""
        self._changed = True
        view = memoryview(text)
        with self._failing_for_good():
            while view:
                written = os.write(self._descriptor, view)
                view = view[written:]
        self._lines += line_count
        self._length += len(text)

    def commit(self, seq: int, ended: bool) -> None:
        """Store in the progress what has been written, up to message ``seq``.

        ``ended``: it was the last message. Then the file is closed, and removed if it is empty.
        """
        if self._failure:
            raise SinkError(self._failure)
        self.state.seq, self.state.ended = seq, ended
        if self._descriptor >= 0:
            identity = identity_of(self._descriptor)
            self.state.open = {self._path.name: Written(self._length, *identity)}
        self._progress.keep(self.state.to_json())
        self._changed = False
        if ended and self._descriptor >= 0:
            self.close()
            if self._length == 0:
                remove_file(self._path)

    def close(self) -> None:
        """Close the current file; the session can be continued."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @contextlib.contextmanager
    def _failing_for_good(self) -> Iterator[None]:
        """Let no commit follow a failure, since only a part of a message may have been written."""
        try:
            yield
        except OSError as error:
            self._failure = f"can't write {self._path}: {error.strerror}"
            raise

    def _open_next(self) -> None:
        """Begin a new file. The progress names it before there is data in it.

        So after a crash no file with data is unknown, and each can be cut back.
        """
        self.close()
        self._delete_oldest()
        path = create_session_file(self._session, "jsonl", self.state.digits)
        self._descriptor = open_file(path, os.O_WRONLY | os.O_APPEND)
        self.state.digits = path.name.split("_")[2]
        self.state.ended = False
        self.state.open[path.name] = Written(0, *identity_of(self._descriptor))
        if self._file_limit > 0:
            self.state.removable.append(path.name)
        self._progress.keep(self.state.to_json())
        self._path, self._lines, self._length = path, 0, 0
        self._made.append(path.name)
        self._count += 1

    def _last_name(self) -> str:
        process = self._session.process
        return f"msmonitor_{process.pid}_{self.state.digits}_{process.rank}.jsonl"

    def _delete_oldest(self) -> None:
        """Make room for one more file; only files of this session are ever deleted."""
        removable = self.state.removable
        while self._file_limit > 0 and len(removable) >= self._file_limit:
            name = removable.pop(0)
            remove_file(self._directory / name)
            if name in self._made:
                self._made.remove(name)
            self._count = max(0, self._count - 1)

    def _resume(self) -> FilesState:
        """Return what the progress holds of this session, after cutting its files back to it."""
        if not self._progress.value:
            return FilesState(str(self._directory))
        try:
            state = FilesState.from_json(self._progress.value)
        except (ValueError, TypeError, KeyError) as error:
            raise SinkError(
                f"the progress of session {self._session.session_id} is damaged: {error}",
                "start a new session",
            ) from error
        if state.directory != str(self._directory):  # an output of the daemon that was moved
            return FilesState(str(self._directory))
        for name, written in state.open.items():
            _cut_back(self._directory / name, written)
        state.open = {name: item for name, item in state.open.items() if item.length}
        return state


def _cut_back(path: Path, written: Written) -> None:
    """Cut a file to its committed length; one without any is removed.

    What is no longer the file that was written is left alone: somebody put it there.
    """
    try:
        descriptor = open_file(path, os.O_WRONLY)
    except FileNotFoundError:
        return
    except SinkError as error:
        _log.warning("%s; the session goes on in a new file", error.message)
        return
    try:
        if identity_of(descriptor) != FileIdentity(written.device, written.inode):
            _log.warning("%s is another file now; the session goes on in a new one", path)
        elif written.length == 0:
            remove_file(path)
        elif os.fstat(descriptor).st_size > written.length:
            os.ftruncate(descriptor, written.length)
    finally:
        os.close(descriptor)


def line(fields: dict[str, Any]) -> bytes:
    """Return one compact line with sorted keys. Raises ValueError for nan and infinities."""
    text = json.dumps(
        fields, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return text.encode("utf-8", "backslashreplace") + b"\n"
