"""Whether anybody else could change what lies at a path.

A daemon, perhaps root's, keeps its socket, its keys and its state in directories, and writes what
arrives over TCP into others. Whoever may write in one of the directories above can put
something else there. So a path is *guarded* when each directory on it belongs to root or to this
process's user, and nobody else may write in it. Three things are allowed on the way:

* a sticky directory, as /tmp: what root or we have made in it nobody else can move away;
* a link that root or we have made, as /var/run, in a directory that is guarded itself;
* a group that may write, if it is the owner's private one. useradd gives such a group the number
  of its user, and systems that do so often have umask 002.

Each step is taken and looked at through a descriptor, so nothing changes between look and step.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from msmon.errors import BusError

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40


class Unguarded(BusError):
    """Others could change what lies at a path."""


def require_guarded(path: Path, make: bool = False, mode: int = 0o700) -> None:
    """Raise Unguarded, with the command to run, unless a directory is guarded.

    Where the directory is missing, what is there of its path is looked at; with ``make`` the rest
    is made with ``mode``. Raises OSError where the path can't be walked.
    """
    _Walk().go(path.absolute(), make, mode)


class _Walk:
    """One walk from / to a directory. ``place`` names, without links, what ``holding`` is."""

    def __init__(self) -> None:
        self._trusted = {0, os.geteuid()}
        self._place = Path("/")
        self._holding = -1
        self._shared = False
        """Others may make entries in ``place``, but not move ours: it is sticky."""

    def go(self, path: Path, make: bool, mode: int) -> None:
        links = 0
        try:
            self._enter(os.open("/", _STEP), Path("/"))
            parts = list(path.parts[1:])
            while parts:
                part = parts.pop(0)
                step = self._step(part, make, mode)
                if step < 0:
                    return
                target = self._link(step, part)
                if target is None:
                    place = self._place.parent if part == ".." else self._place / part
                    self._enter(step, place)
                    continue
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                parts = [*(item for item in target.parts if item != "/"), *parts]
                if target.is_absolute():
                    self._enter(os.open("/", _STEP), Path("/"))
            if self._shared:
                raise _writable(self._place, os.stat(self._holding).st_mode)
        finally:
            if self._holding >= 0:
                os.close(self._holding)

    def _step(self, part: str, make: bool, mode: int) -> int:
        """Return a descriptor of an entry; -1 where it is missing and is not to be made."""
        try:
            return os.open(part, _STEP, dir_fd=self._holding)
        except FileNotFoundError:
            if not make:
                return -1
        with contextlib.suppress(FileExistsError):  # made just now: by whom is looked at next
            os.mkdir(part, mode, dir_fd=self._holding)
        return os.open(part, _STEP, dir_fd=self._holding)

    def _link(self, step: int, part: str) -> Path | None:
        """Return where a link leads that root or we have made, and close it; None for no link."""
        found = os.fstat(step)
        if not stat.S_ISLNK(found.st_mode):
            return None
        try:
            if found.st_uid not in self._trusted:
                raise Unguarded(
                    f"{self._place / part} is a link of uid {found.st_uid}",
                    "remove it, or name a directory without links of other users",
                )
            return Path(os.readlink("", dir_fd=step))
        finally:
            os.close(step)

    def _enter(self, descriptor: int, place: Path) -> None:
        """Go on in a directory, if it is guarded; else raise Unguarded."""
        if self._holding >= 0:
            os.close(self._holding)
        self._holding, self._place = descriptor, place
        found = os.fstat(descriptor)
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
        if found.st_uid not in self._trusted:
            raise Unguarded(
                f"{place} belongs to uid {found.st_uid}, who could change what is in it",
                f"run: chown {os.geteuid()} {place}, or choose another directory",
            )
        self._shared = _others_may_write(found)
        if self._shared and not found.st_mode & stat.S_ISVTX:
            raise _writable(place, found.st_mode)


def _others_may_write(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    private_group = found.st_gid == found.st_uid
    return bool(found.st_mode & stat.S_IWGRP) and not private_group


def _writable(place: Path, mode: int) -> Unguarded:
    return Unguarded(
        f"{place} can be changed by other users (mode {stat.S_IMODE(mode):03o})",
        f"run: chmod go-w {place}, or choose another directory",
    )
