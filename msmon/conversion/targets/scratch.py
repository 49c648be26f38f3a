"""A scratch directory: where the files of a conversion lie until they are complete.

It lies within the directory of the outputs, because a finished file is renamed into its place,
and that needs the same file system. A conversion that is killed can't remove it. So a
conversion holds a lock on its own scratch directory as long as it lives, and the next one in
the same place removes those that nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

_PREFIX = ".msmon-convert."
_NAME = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")


class Scratch:
    """One scratch directory, from its making to :meth:`remove`."""

    def __init__(self, directory: Path) -> None:
        """Make one within ``directory``, and remove those of conversions that died there.

        Raises OSError.
        """
        _remove_abandoned(directory)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory))
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                self._lock = _lock_or_none(self.path)
                if self.path.is_dir():
                    break
            # Another conversion found it before it was locked, and takes it for abandoned.

    def remove(self) -> None:
        """Remove the directory with all that is left in it. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock_or_none(path: Path) -> int | None:
    """Return a descriptor that holds the lock of a directory.

    None where the file system has no locks: nobody can take the directory for abandoned then.
    Raises BlockingIOError where somebody else holds it, and FileNotFoundError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor


def _remove_abandoned(directory: Path) -> None:
    """Remove the scratch directories of conversions that no longer run.

    A directory is one if it has such a name, belongs to this user, and nobody else may enter
    it. What can't be looked at or removed stays, as it is in nobody's way.
    """
    for path in directory.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            private = found.st_uid == os.geteuid() and not found.st_mode & 0o077
            if _NAME.fullmatch(path.name) and stat.S_ISDIR(found.st_mode) and private:
                lock = _lock_or_none(path)
                if lock is not None:
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(lock)
