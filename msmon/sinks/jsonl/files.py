"""The JSONL files of one session: rotation, clean-up, and where an interrupted one goes on.

The session's progress says how many bytes of which files are committed. After a crash the
files are cut back to that, so that no line is torn or there twice, and the session goes on
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
"""Files that are told one by one."""


@dataclass
class Written:
    """A file, and how much of it is committed."""

    length: int
    device: int
    inode: int


@dataclass
class Kept:
    """What must survive a crash of the daemon; the progress holds it as JSON."""

    directory: str
    seq: int = 0
    digits: str = ""
    """Time in the name of the last file."""
    open: dict[str, Written] = field(default_factory=dict)
    """Files written to since the last commit, by name."""
    kept: list[str] = field(default_factory=list)
    """Earlier files, oldest first; only when old files are deleted."""
    devices: list[int] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    markers: list[str] = field(default_factory=list)
    """Frames of the markers that still wait for their other half, in base 64."""

    @classmethod
    def from_json(cls, text: bytes) -> Kept:
        """Read what :meth:`to_json` wrote. Raises ValueError or TypeError."""
        fields = json.loads(text)
        fields["open"] = {name: Written(**item) for name, item in fields["open"].items()}
        return cls(**fields)

    def to_json(self) -> bytes:
        """Return the text to keep."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


class RotatedFiles:
    """Writes whole lines into files of at most ``line_limit`` lines.

    ``file_limit``: files kept, -1 for all. Methods raise SinkError or OSError; the object
    is then to be made anew.
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
        self.kept = self._resume()
        self._has_earlier = self.kept.seq > 0
        if self.kept.ended:
            self._path = self._directory / self._last_name()
            self._length = sum(item.length for item in self.kept.open.values())
        else:
            self._open_next()

    @property
    def path(self) -> Path:
        """The file being written."""
        return self._path

    @property
    def written(self) -> tuple[str, ...]:
        """Absolute paths of the session's files; one pattern where they are many."""
        empty = self._length == 0  # and will not stay
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
        """Lines that the current file still takes, at least 1: a full one is replaced."""
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
        """Keep what has been written as progress, up to message ``seq``.

        After the last one no file is open and no empty one stays behind.
        """
        if self._failure:
            raise SinkError(self._failure)
        self.kept.seq, self.kept.ended = seq, ended
        if self._descriptor >= 0:
            identity = identity_of(self._descriptor)
            self.kept.open = {self._path.name: Written(self._length, *identity)}
        self._progress.keep(self.kept.to_json())
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
        """After a failure nothing more is committed: a part of a message may have been written."""
        try:
            yield
        except OSError as error:
            self._failure = f"can't write {self._path}: {error.strerror}"
            raise

    def _open_next(self) -> None:
        """Begin a new file. Its name is kept before it gets data: a crash leaves no stranger."""
        self.close()
        self._delete_oldest()
        path = create_session_file(self._session, "jsonl", self.kept.digits)
        self._descriptor = open_file(path, os.O_WRONLY | os.O_APPEND)
        self.kept.digits = path.name.split("_")[2]
        self.kept.ended = False
        self.kept.open[path.name] = Written(0, *identity_of(self._descriptor))
        if self._file_limit > 0:
            self.kept.kept.append(path.name)
        self._progress.keep(self.kept.to_json())
        self._path, self._lines, self._length = path, 0, 0
        self._made.append(path.name)
        self._count += 1

    def _last_name(self) -> str:
        process = self._session.process
        return f"msmonitor_{process.pid}_{self.kept.digits}_{process.rank}.jsonl"

    def _delete_oldest(self) -> None:
        """Make room for one more file; only files of this session are ever deleted."""
        kept = self.kept.kept
        while self._file_limit > 0 and len(kept) >= self._file_limit:
            name = kept.pop(0)
            remove_file(self._directory / name)
            if name in self._made:
                self._made.remove(name)
            self._count = max(0, self._count - 1)

    def _resume(self) -> Kept:
        """Return what was kept of this session, with its files cut back to it."""
        if not self._progress.value:
            return Kept(str(self._directory))
        try:
            kept = Kept.from_json(self._progress.value)
        except (ValueError, TypeError, KeyError) as error:
            raise SinkError(
                f"the progress of session {self._session.session_id} is damaged: {error}",
                "start a new session",
            ) from error
        if kept.directory != str(self._directory):  # an output of the daemon that was moved
            return Kept(str(self._directory))
        for name, written in kept.open.items():
            _cut_back(self._directory / name, written)
        kept.open = {name: item for name, item in kept.open.items() if item.length}
        return kept


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
