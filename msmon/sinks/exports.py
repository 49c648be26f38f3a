"""Where exported files may lie, and how they are made, opened again and removed.

All of this runs with the rights of the user whose data is written: in that user's output
process below a root daemon, otherwise in the daemon itself. Nothing is ever given to
another user afterwards. Three rules keep a planted link, FIFO or device from doing harm:

- A directory is reached one name at a time, from ``/`` on, and no link is followed.
- A file is new, or it is opened without following links and without blocking, and then
  looked at through its descriptor: a regular file of this user with a single name.
- Files are removed by name within a directory that is held open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msmon.errors import SinkError, UsageError

DIRECTORY_MODE = 0o750
FILE_MODE = 0o640
NAME_BYTES = 255
"""The longest name of a file or directory (NAME_MAX)."""
PATH_BYTES = 4095
"""The longest path (PATH_MAX without its terminating zero)."""
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_OURS = (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES, errno.EPERM)
"""A link, a FIFO or socket, a directory, a file of somebody else."""
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ReplacedFile(SinkError):
    """Where a file or directory was, something else is now."""


class FileIdentity(NamedTuple):
    """Which file it is, whatever its name."""

    device: int
    inode: int


def require_absolute(path: str) -> None:
    """Raise UsageError unless a text can be the path of a directory. Touches no file."""
    if "\0" in path or not os.path.isabs(path):
        raise UsageError(
            f"--log-file: {path!r} is not an absolute path", "name the directory from its root /"
        )
    if len(os.fsencode(path)) > PATH_BYTES:
        raise UsageError("--log-file: the path is too long", f"at most {PATH_BYTES} bytes")


def resolve_export(path: str, roots: Sequence[str | Path] | None) -> Path:
    """Return the absolute directory, without links, that an export to ``path`` goes to.

    It need not exist; it is made with its first file. ``roots``: it must lie in or below
    one of them; None: it may lie anywhere. Raises UsageError for a path that is not allowed
    or can't be a path, SinkError for one that this user can't create or write.
    """
    require_absolute(path)
    try:
        resolved = Path(os.path.realpath(path))
        if roots is not None:
            require_below(resolved, roots)
        _check_writable(resolved)
    except OSError as error:
        raise SinkError(f"--log-file: can't use {path}: {error.strerror}") from error
    return resolved


def require_below(resolved: Path, roots: Sequence[str | Path]) -> None:
    """Raise UsageError unless a path without links lies in or below one of the roots."""
    allowed = [Path(os.path.realpath(root)) for root in roots]
    if any(root == resolved or root in resolved.parents for root in allowed):
        return
    names = ", ".join(map(str, allowed))
    raise UsageError(
        f"--log-file: this user may not export to {resolved}",
        f"choose a directory below {names}" if names else "start the daemon with --export-root",
    )


def _check_writable(directory: Path) -> None:
    """Raise SinkError unless this process could make files there, with all that is missing."""
    existing = directory
    while not os.path.lexists(existing):
        if len(os.fsencode(existing.name)) > NAME_BYTES:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        existing = existing.parent
    if not stat.S_ISDIR(existing.stat().st_mode):
        raise SinkError(f"{existing} is not a directory", "choose another export directory")
    if not os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
        raise SinkError(
            f"{existing} can't be written by the user of the process (uid {os.geteuid()})",
            f"it belongs to uid {existing.stat().st_uid}; choose a directory of uid "
            f"{os.geteuid()}, or make one there for it",
        )


def create_file(directory: Path, name: str) -> Path:
    """Create an empty file that did not exist, and its directory where that is missing.

    Raises FileExistsError, OSError, and ReplacedFile where a directory has become something else.
    """
    with _holding(directory, make=True) as holding:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | _FILE
        os.close(os.open(name, flags, FILE_MODE, dir_fd=holding))
    return directory / name


def open_file(path: Path, flags: int) -> int:
    """Return a descriptor of a file that this user made before. ``flags``: as for ``os.open``.

    Raises FileNotFoundError, OSError, and ReplacedFile where something else is in its place.
    """
    with _holding(path.parent) as holding:
        try:
            descriptor = os.open(path.name, flags | _FILE, dir_fd=holding)
        except OSError as error:
            if error.errno in _NOT_OURS:
                raise _replaced(path) from None
            raise OSError(error.errno, error.strerror, str(path)) from None
    found = os.fstat(descriptor)
    regular = stat.S_ISREG(found.st_mode)
    if not regular or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(descriptor)
        raise _replaced(path)
    return descriptor


def identity_of(descriptor: int) -> FileIdentity:
    """Return which file a descriptor stands for."""
    found = os.fstat(descriptor)
    return FileIdentity(found.st_dev, found.st_ino)


def remove_file(path: Path) -> None:
    """Remove a file, or a link at its name; nothing happens where there is none."""
    with contextlib.suppress(FileNotFoundError), _holding(path.parent) as holding:
        os.unlink(path.name, dir_fd=holding)


@contextlib.contextmanager
def _holding(directory: Path, make: bool = False) -> Iterator[int]:
    """Hold a directory open that is given without links; ``make`` what is missing of it."""
    descriptor = os.open("/", _DIRECTORY)
    try:
        place = Path("/")
        for part in directory.parts[1:]:
            place /= part
            inner = _step_into(descriptor, part, place, make)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _step_into(outer: int, name: str, place: Path, make: bool) -> int:
    try:
        try:
            return os.open(name, _DIRECTORY, dir_fd=outer)
        except FileNotFoundError:
            if not make:
                raise
        with contextlib.suppress(FileExistsError):  # made by another session just now
            os.mkdir(name, DIRECTORY_MODE, dir_fd=outer)
        return os.open(name, _DIRECTORY, dir_fd=outer)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _replaced(place) from None
        raise OSError(error.errno, error.strerror, str(place)) from None


def _replaced(path: Path) -> ReplacedFile:
    return ReplacedFile(f"{path} has been replaced by something else", "start a new session")


def require_opened(path: Path, identity: FileIdentity) -> None:
    """Raise SinkError unless this process holds exactly this file open under this path.

    For libraries that open by name. Had a directory above been replaced by a link, the
    kernel would name the file elsewhere (proc(5), fd).
    """
    try:
        descriptors = os.listdir("/proc/self/fd")
    except FileNotFoundError:
        raise SinkError(
            f"{path} can't be checked against links: /proc is missing",
            "mount /proc, or export as Jsonl",
        ) from None
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            named = os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
            if named and identity_of(int(descriptor)) == identity:
                return
    raise SinkError(f"{path} has been moved or replaced by a link", "start a new session")
