"""What sessions need to go on after a restart of the daemon, in its state directory.

One small file per session and output, in a directory per owner. Only the daemon can write
there, so what it reads is what it wrote. An entry stays when its session is forgotten: an agent
that was suspended meanwhile, and never heard of the last acknowledgement, sends the end of the
session again, and the entry says that it is written. How much one owner can have kept is bounded.
Before an entry grows, the oldest entries of sessions that are not open are removed. If that makes
too little room, nothing is stored and the session fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from msmon.bus.places import Unguarded
from msmon.daemon.access.owners import make_owner_directory
from msmon.daemon.outputs.lag import LeftBehind
from msmon.errors import SinkError
from msmon.sinks.base import Progress

MAX_SESSION_BYTES = 4 << 20
MAX_OWNER_ENTRIES = 4096
MAX_OWNER_BYTES = 256 << 20
_SUFFIX = ".progress"
_NOTE = "-left"


class ProgressDirectory:
    """The progress of all sessions of one owner in one output. The output's thread writes it."""

    def __init__(self, directory: Path | None, output: str) -> None:
        self._directory = directory
        """None: nothing is stored; for outputs that no daemon restarts."""
        self._output = output
        self._open: dict[str, Progress] = {}
        self._paths_in_use: set[Path] = set()
        """Files of open sessions, which must not be removed to make room."""

    def of(self, session_id: str) -> Progress:
        """Return the progress of a session, as it was kept last. Raises SinkError."""
        known = self._open.get(session_id)
        if known is None:
            known = Progress()
            if self._directory is not None:
                path = self._path(session_id)
                known = StoredProgress(self._directory, path, self._paths_in_use)
                self._paths_in_use.add(path)
            self._open[session_id] = known
        return known

    def forget(self, session_id: str) -> None:
        """Release the progress of a session that is not open any more; its entry stays."""
        self._open.pop(session_id, None)
        if self._directory is not None:
            self._paths_in_use.discard(self._path(session_id))

    def left_behind(self, session_id: str) -> LeftBehind:
        """Return what an earlier daemon acknowledged of a session and did not write."""
        note = self._note(session_id)
        return LeftBehind.decode(note.value if note is not None else b"")

    def keep_left_behind(self, session_id: str, left: LeftBehind) -> None:
        """Keep that for the next daemon. Raises SinkError."""
        note = self._note(session_id)
        if note is not None:
            note.keep(left.encode())

    def forget_left_behind(self, session_id: str) -> None:
        """Remove what was kept: the output tells of it."""
        if self._directory is not None:
            with contextlib.suppress(OSError):
                self._path(session_id, _NOTE).unlink(missing_ok=True)

    def _note(self, session_id: str) -> StoredProgress | None:
        if self._directory is None:
            return None
        return StoredProgress(self._directory, self._path(session_id, _NOTE), self._paths_in_use)

    def _path(self, session_id: str, note: str = "") -> Path:
        assert self._directory is not None
        digest = hashlib.sha256(session_id.encode("utf-8", "backslashreplace")).hexdigest()
        return self._directory / f"{self._output}-{digest[:32]}{note}{_SUFFIX}"


class StoredProgress(Progress):
    """A progress in a file. The output's thread writes it.

    Raises SinkError where it can't be read or stored.
    """

    def __init__(self, directory: Path, path: Path, paths_in_use: Collection[Path] = ()) -> None:
        self._directory = directory
        self._paths_in_use = paths_in_use
        self._path = path
        super().__init__(self._read())

    def _read(self) -> bytes:
        try:
            value = self._path.read_bytes()
            os.utime(self._path)  # its session goes on, so it must not count as one of the oldest
            return value
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise SinkError(f"can't read {self._path}: {error.strerror}") from error

    def keep(self, value: bytes) -> None:
        """Replace the file. Another daemon may not have done so meanwhile."""
        if len(value) > MAX_SESSION_BYTES:
            raise SinkError("the session has more open ends than can be kept over a restart")
        if self._read() != self.value:
            raise SinkError("the session is written by another daemon", "stop one of them")
        if not self.value or len(value) > len(self.value):
            self._make_room(len(value))
        try:
            _replace(self._path, value)
        except OSError as error:
            raise SinkError(f"can't write {self._path}: {error.strerror}") from error
        super().keep(value)

    def _make_room(self, size_bytes: int) -> None:
        """Have room for this entry with this size. Raises SinkError if there is none."""
        try:
            make_owner_directory(self._directory)
            others = sorted(self._others(), key=lambda item: item[1].st_mtime_ns)
        except OSError as error:
            raise SinkError(f"can't use {self._directory}: {error.strerror}") from error
        except Unguarded as error:
            raise SinkError(error.message, error.next_step) from None
        count, total = len(others) + 1, size_bytes + sum(status.st_size for _, status in others)
        for path, status in others:
            if count <= MAX_OWNER_ENTRIES and total <= MAX_OWNER_BYTES:
                return
            if path not in self._paths_in_use:
                path.unlink(missing_ok=True)
                count, total = count - 1, total - status.st_size
        if count > MAX_OWNER_ENTRIES or total > MAX_OWNER_BYTES:
            raise SinkError("the sessions of this user have more than can be kept over a restart")

    def _others(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self._directory.glob(f"*{_SUFFIX}"):
            if path == self._path:
                continue
            with contextlib.suppress(FileNotFoundError):
                yield path, path.stat()


def _replace(path: Path, value: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.unlink(missing_ok=True)  # of a daemon that was killed
    flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC
    descriptor = os.open(beside, flags, 0o600)
    with open(descriptor, "wb") as file:
        file.write(value)
    os.replace(beside, path)
