"""The JSONL files of one session: rotation, clean-up, and where an interrupted one goes on.

A hidden file beside them, removed soon after the end, holds up to where they are acknowledged.
After a crash they are cut back to that length, so that nothing is torn or written
twice, and the session goes on in a new file.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from msmon.errors import SinkError
from msmon.sessions import SessionInfo
from msmon.sinks.exports import FILE_MODE, give_to
from msmon.sinks.file_names import create_session_file

STALE_AFTER_S = 24 * 3600.0
"""Progress files of sessions that never came back are removed after this time."""


@dataclass
class Progress:
    """What must survive a crash of the daemon."""

    session_id: str
    seq: int = 0
    digits: str = ""
    """Time in the name of the last file."""
    open: dict[str, int] = field(default_factory=dict)
    """Files written to since the last commit, and their acknowledged length in bytes."""
    kept: list[str] = field(default_factory=list)
    """Earlier files, oldest first; only when old files are deleted."""
    devices: list[int] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    markers: list[str] = field(default_factory=list)
    """Frames of the markers that still wait for their other half, in base 64."""


MAX_NAMED = 16
"""Files that are told one by one."""


class RotatedFiles:
    """Writes whole lines into files of at most ``line_limit`` lines.

    ``file_limit``: files kept, -1 for all. Methods raise SinkError or OSError; the object
    is then to be made anew.
    """

    def __init__(self, session: SessionInfo, line_limit: int, file_limit: int) -> None:
        self._session = session
        self._line_limit = line_limit
        self._file_limit = file_limit
        self._directory = Path(session.settings.log_file)
        name = f".msmonitor_{session.process.pid}_{session.session_id}.progress"
        self._progress_path = self._directory / name.replace("/", "_")
        self._saved = ""
        self._descriptor = -1
        self._failure = ""
        self._path = Path()
        self._lines = 0
        self._length = 0
        self._made: deque[str] = deque(maxlen=MAX_NAMED)
        """Names of the newest files that exist, oldest first."""
        self._count = 0
        self.progress = self._resume()
        self._has_earlier = self.progress.seq > 0
        if self.progress.ended:
            self._path = self._directory / self._last_name()
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
    def room(self) -> int:
        """Lines that the current file still takes, at least 1: a full one is replaced."""
        if self._descriptor < 0 or self._lines >= self._line_limit:
            with self._failing_for_good():
                self._open_next()
        return self._line_limit - self._lines

    def write(self, text: bytes, line_count: int) -> None:
        """Append whole lines, no more than there is room for."""
        view = memoryview(text)
        with self._failing_for_good():
            while view:
                written = os.write(self._descriptor, view)
                view = view[written:]
        self._lines += line_count
        self._length += len(text)

    def commit(self, seq: int, ended: bool) -> None:
        """Acknowledge what has been written, up to message ``seq``; after the last no file is
        open and no empty one stays behind."""
        if self._failure:
            raise SinkError(self._failure)
        self.progress.seq, self.progress.ended = seq, ended
        self.progress.open = {self._path.name: self._length}
        self._save()
        if ended and self._descriptor >= 0:
            self.close()
            if self._length == 0:
                self._path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove the progress file: nothing of this session comes again."""
        self._progress_path.unlink(missing_ok=True)

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
        self.close()
        self._delete_oldest()
        path = create_session_file(self._session, "jsonl", self.progress.digits)
        self.progress.digits = path.name.split("_")[2]
        self.progress.ended = False
        self.progress.open[path.name] = 0
        if self._file_limit > 0:
            self.progress.kept.append(path.name)
        self._save()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._path, self._lines, self._length = path, 0, 0
        self._made.append(path.name)
        self._count += 1

    def _last_name(self) -> str:
        process = self._session.process
        return f"msmonitor_{process.pid}_{self.progress.digits}_{process.rank}.jsonl"

    def _delete_oldest(self) -> None:
        """Make room for one more file; only files of this session are ever deleted."""
        kept = self.progress.kept
        while self._file_limit > 0 and len(kept) >= self._file_limit:
            name = kept.pop(0)
            (self._directory / name).unlink(missing_ok=True)
            if name in self._made:
                self._made.remove(name)
            self._count = max(0, self._count - 1)

    def _resume(self) -> Progress:
        """Return the progress of this session, with its files cut back to it."""
        self._remove_stale()
        try:
            self._saved = self._progress_path.read_text()
            progress = Progress(**json.loads(self._saved))
        except FileNotFoundError:
            return Progress(self._session.session_id)
        except (ValueError, TypeError) as error:
            raise SinkError(
                f"{self._progress_path} is damaged: {error}", "remove it and start a new session"
            ) from error
        for name, length in progress.open.items():
            with contextlib.suppress(FileNotFoundError):
                _cut_back(self._directory / Path(name).name, length)
        progress.open = {name: length for name, length in progress.open.items() if length}
        progress.kept = [name for name in progress.kept if (self._directory / name).exists()]
        return progress

    def _save(self) -> None:
        """Replace the progress file; nobody else may have done so meanwhile."""
        with contextlib.suppress(FileNotFoundError):
            if self._progress_path.read_text() != self._saved:
                raise SinkError(f"{self._path} is written by another daemon", "stop one of them")
        text = json.dumps(asdict(self.progress))
        beside = self._progress_path.with_suffix(".new")
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW
        with open(os.open(beside, flags, FILE_MODE), "w") as file:
            file.write(text)
        give_to(beside, self._session.process.uid)
        os.replace(beside, self._progress_path)
        self._saved = text

    def _remove_stale(self) -> None:
        """By the clock of the file system: this machine's own may have been set meanwhile."""
        others = set(self._directory.glob(".msmonitor_*.progress")) - {self._progress_path}
        if not others:
            return
        with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=self._directory) as probe:
            now_s = os.fstat(probe.fileno()).st_mtime
            for path in others:
                with contextlib.suppress(FileNotFoundError):  # another session was faster
                    if now_s - path.stat().st_mtime > STALE_AFTER_S:
                        path.unlink()


def _cut_back(path: Path, length: int) -> None:
    """Cut a file to its acknowledged length; one without any is removed. Follows no links."""
    if length == 0:
        path.unlink()
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_nlink == 1 and os.fstat(descriptor).st_size > length:
            os.ftruncate(descriptor, length)
    finally:
        os.close(descriptor)


def line(fields: dict[str, Any]) -> bytes:
    """Return one compact line with sorted keys. Raises ValueError for nan and infinities."""
    text = json.dumps(
        fields, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return text.encode("utf-8", "backslashreplace") + b"\n"
