"""Where exported files may be written, and who will own them.

The daemon decides, never the caller: whoever is, by the kernel's word, the daemon's own
user may name any directory which that user can write; everybody else only directories
below an export root. Links are followed first, then the result is checked, and what
has been checked is created and used under its resolved name.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Sequence
from pathlib import Path

from msmon.errors import SinkError, UsageError

DIRECTORY_MODE = 0o750
FILE_MODE = 0o640


def resolve_export(path: str, caller_uid: int, roots: Sequence[Path]) -> Path:
    """Return the absolute directory, without links, that this caller may export to.

    Creates it where missing. Raises UsageError for a path that is not allowed or can't be
    a path, SinkError for one that can't be created or written.
    """
    if "\0" in path or not os.path.isabs(path):
        raise UsageError(
            f"--log-file: {path!r} is not an absolute path", "name the directory from its root /"
        )
    try:
        resolved = Path(os.path.realpath(path))
        if caller_uid != os.geteuid():
            _check_below_roots(resolved, roots)
        create_directory(resolved)
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


def create_directory(directory: Path, owner_uid: int = -1) -> None:
    """Create a directory and its parents. Raises SinkError for what can't be written to."""
    missing: list[Path] = []
    parent = directory
    while not os.path.lexists(parent):
        missing.append(parent)
        parent = parent.parent
    if not stat.S_ISDIR(parent.stat().st_mode):
        raise SinkError(f"{parent} is not a directory", "choose another export directory")
    if not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
        raise SinkError(
            f"{parent} can't be written by the daemon's user (uid {os.geteuid()})",
            f"the directory belongs to uid {parent.stat().st_uid}; choose another one",
        )
    for path in reversed(missing):
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        give_to(path, owner_uid)


def check_unchanged(directory: Path) -> None:
    """Raise SinkError when a link has been put in place of a directory checked earlier."""
    if os.path.realpath(directory) != str(directory):
        raise SinkError(f"{directory} has been replaced by a link", "start a new session")


def give_to(path: Path, uid: int) -> None:
    """Give a file or directory to the job's user, where this process may."""
    if os.geteuid() != 0 or uid <= 0:
        return
    with contextlib.suppress(KeyError, PermissionError):
        os.chown(path, uid, pwd.getpwuid(uid).pw_gid, follow_symlinks=False)


def create_file(directory: Path, name: str, owner_uid: int) -> Path:
    """Create an empty file that did not exist. Raises FileExistsError, SinkError, OSError."""
    create_directory(directory, owner_uid)
    check_unchanged(directory)
    path = directory / name
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, FILE_MODE))
    give_to(path, owner_uid)
    return path
