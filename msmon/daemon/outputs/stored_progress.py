"""What sessions need to go on after a restart of the daemon, in its state directory.

One small file per session and output, in a directory per owner. Only the daemon can write
there, so what it reads is what it wrote. How much one owner can have kept is bounded: a
session beyond that fails to open, and the oldest entries of ended sessions make room.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from msmon.daemon.access.owners import make_owner_directory
from msmon.errors import SinkError
from msmon.sinks.base import Progress

MAX_SESSION_BYTES = 4 << 20
MAX_OWNER_ENTRIES = 4096
MAX_OWNER_BYTES = 256 << 20
_SUFFIX = ".progress"


class ProgressDirectory:
    """The progress of all sessions of one owner in one output. The output's thread writes it."""

    def __init__(self, directory: Path | None, output: str) -> None:
        self._directory = directory
        """None: nothing is stored; for outputs that no daemon restarts."""
        self._output = output
        self._open: dict[str, Progress] = {}

    def of(self, session_id: str) -> Progress:
        """Return the progress of a session, as it was kept last. Raises SinkError."""
        known = self._open.get(session_id)
        if known is None:
            known = Progress()
            if self._directory is not None:
                known = StoredProgress(self._directory, self._path(session_id))
            self._open[session_id] = known
        return known

    def forget(self, session_id: str) -> None:
        """Remove the progress of a session of which nothing comes again."""
        self._open.pop(session_id, None)
        if self._directory is not None:
            with contextlib.suppress(OSError):
                self._path(session_id).unlink()

    def _path(self, session_id: str) -> Path:
        assert self._directory is not None
        digest = hashlib.sha256(session_id.encode("utf-8", "backslashreplace")).hexdigest()
        return self._directory / f"{self._output}-{digest[:32]}{_SUFFIX}"


class StoredProgress(Progress):
    """A progress in a file. The output's thread writes it.

    Raises SinkError where it can't be read or stored.
    """

    def __init__(self, directory: Path, path: Path) -> None:
        self._directory = directory
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
        if not self.value:
            self._make_room()
        try:
            _replace(self._path, value)
        except OSError as error:
            raise SinkError(f"can't write {self._path}: {error.strerror}") from error
        super().keep(value)

    def _make_room(self) -> None:
        """Remove the entries that were not touched for longest, beyond the bounds."""
        try:
            make_owner_directory(self._directory)
            entries = sorted(self._entries(), key=lambda item: item[1].st_mtime_ns)
        except OSError as error:
            raise SinkError(f"can't use {self._directory}: {error.strerror}") from error
        total = sum(status.st_size for _, status in entries)
        while len(entries) >= MAX_OWNER_ENTRIES or total > MAX_OWNER_BYTES:
            path, status = entries.pop(0)
            total -= status.st_size
            path.unlink(missing_ok=True)

    def _entries(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self._directory.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                yield path, path.stat()


def _replace(path: Path, value: bytes) -> None:
    beside = path.with_suffix(".new")
    descriptor = os.open(beside, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(value)
    os.replace(beside, path)
