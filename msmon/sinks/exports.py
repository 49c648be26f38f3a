"""Where exported files may be written, and who will own them.

The daemon decides, never the caller: whoever is, by the kernel's word, the daemon's own
user may name any directory which that user can write; everybody else only directories
below an export root. Links are followed first, then the result is checked, and what
has been checked is created and used under its resolved name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Sequence
from pathlib import Path

from msmon.errors import SinkError, UsageError

DIRECTORY_MODE = 0o750
FILE_MODE = 0o640
NAME_BYTES = 255
"""The longest name of a file or directory (NAME_MAX)."""
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def resolve_export(path: str, caller_uid: int, roots: Sequence[Path]) -> Path:
    """Return the absolute directory, without links, that this caller may export to.

    It need not exist; it is made with its first file. Raises UsageError for a path that is
    not allowed or can't be a path, SinkError for one that can't be created or written.
    """
    if "\0" in path or not os.path.isabs(path):
        raise UsageError(
            f"--log-file: {path!r} is not an absolute path", "name the directory from its root /"
        )
    try:
        resolved = Path(os.path.realpath(path))
        if caller_uid != os.geteuid():
            _check_below_roots(resolved, roots)
        _check_writable(resolved)
    except OSError as error:
        raise SinkError(f"--log-file: can't use {path}: {error.strerror}") from error
    return resolved


def _check_below_roots(resolved: Path, roots: Sequence[Path]) -> None:
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
            f"{existing} can't be written by the daemon's user (uid {os.geteuid()})",
            f"the directory belongs to uid {existing.stat().st_uid}; choose another one",
        )


def give_to(target: Path | int, uid: int) -> None:
    """Give a file or directory, by path or descriptor, to the job's user, where this process may.

    A link at the path is not followed.
    """
    if os.geteuid() != 0 or uid <= 0:
        return
    try:
        group_id = pwd.getpwuid(uid).pw_gid
    except KeyError:  # a user of some container, unknown here
        group_id = -1
    with contextlib.suppress(PermissionError):
        os.chown(target, uid, group_id, follow_symlinks=isinstance(target, int))


def create_file(directory: Path, name: str, owner_uid: int) -> Path:
    """Create an empty file that did not exist, and its directory where that is missing.

    Goes from directory to directory without following links: what was put in the place of
    one after it was checked is never used. Raises FileExistsError, SinkError, OSError.
    """
    holding = _open_directory(directory, owner_uid)
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        created = os.open(name, flags, FILE_MODE, dir_fd=holding)
        try:
            give_to(created, owner_uid)
        finally:
            os.close(created)
    finally:
        os.close(holding)
    return directory / name


def _open_directory(directory: Path, owner_uid: int) -> int:
    """Return a descriptor of a directory given without links; make what is missing of it."""
    descriptor = os.open("/", _DIRECTORY)
    place = Path("/")
    for part in directory.parts[1:]:
        place /= part
        try:
            inner = _open_inner(descriptor, part, owner_uid)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise SinkError(
                    f"{place} has been replaced by something else", "start a new session"
                ) from None
            raise OSError(error.errno, error.strerror, str(place)) from None  # not a part of it
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def _open_inner(outer: int, name: str, owner_uid: int) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=outer)
    except FileNotFoundError:
        pass
    with contextlib.suppress(FileExistsError):  # made by another session just now
        os.mkdir(name, DIRECTORY_MODE, dir_fd=outer)
    inner = os.open(name, _DIRECTORY & ~os.O_PATH | os.O_RDONLY, dir_fd=outer)
    if os.fstat(inner).st_uid == os.geteuid():
        give_to(inner, owner_uid)
    return inner


def require_opened(path: Path) -> None:
    """Raise SinkError unless this process holds the file open that is meant by ``path``.

    For libraries that open by name: had a directory above been replaced by a link, the kernel
    would name the file elsewhere (proc(5), fd).
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
            if os.readlink(f"/proc/self/fd/{descriptor}") == str(path):
                return
    raise SinkError(f"{path} has been moved or replaced by a link", "start a new session")
