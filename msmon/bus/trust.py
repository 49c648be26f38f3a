"""Whom a client trusts on its own machine: which directory, and who may be at the other end.

What is safe, and why:

* A runtime directory counts only if it is no link, belongs to root, to this user or (below
  /run, where only root can make anything) to the system daemon's user, and nobody else may
  write in it. So only they can have put the socket and the public key there. It is opened once
  and looked into through that descriptor: a directory exchanged afterwards changes nothing.
* The CURVE handshake of every connection, first or later, proves that the other end holds the
  secret half of that public key.
* The kernel keeps who called ``listen`` on a Unix socket (SO_PEERCRED, unix(7)). libzmq's
  monitor names the descriptor of each connection it makes, and that very descriptor is asked,
  before anything is sent over it. A descriptor that libzmq has closed meanwhile belongs to a
  connection over which nothing can be sent any more; the next one is announced and asked anew.
  This also covers daemons with ``--insecure``, which have no key.
"""

from __future__ import annotations

import _socket
import contextlib
import os
import socket
import stat
import struct
from pathlib import Path

from msmon.errors import BusError

_CREDENTIALS = struct.Struct("iII")
"""``struct ucred``: pid, uid, gid."""
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MAX_KEY_FILE_BYTES = 4096


class Untrusted(BusError):
    """A place where a daemon might be, but others might as well have put something there."""


class TrustedDirectory:
    """A runtime directory held open; use it as a context manager.

    ``any_owner``: the directory was named by the user, or only root could make it, so whoever
    owns it is trusted. ``uid`` is the user who would trust it, and ``root`` what that user's
    process has for "/"; by default those of this process.

    Raises Untrusted, and OSError when it can't be opened at all.
    """

    def __init__(
        self, path: Path, any_owner: bool, uid: int | None = None, root: Path = Path("/")
    ) -> None:
        self.path = path
        self._uid = os.geteuid() if uid is None else uid
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(seen_below(root, path), flags)
        try:
            self.daemon_uids = self._checked_owners(any_owner)
            """Users as which a daemon in this directory may run."""
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> TrustedDirectory:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory."""
        os.close(self._descriptor)

    def _checked_owners(self, any_owner: bool) -> frozenset[int]:
        status = os.fstat(self._descriptor)
        own = {0, self._uid}
        if status.st_uid not in own and not any_owner:
            raise Untrusted(
                f"{self.path} belongs to uid {status.st_uid}: what is in it is not trusted",
                f"set MSMON_RUNTIME_DIR={self.path} to use it all the same",
            )
        if status.st_mode & _OTHERS_MAY_WRITE:
            raise Untrusted(
                f"others may write in {self.path} (mode {stat.S_IMODE(status.st_mode):03o}): "
                "what is in it is not trusted",
                f"run: chmod go-w {self.path}",
            )
        return frozenset({*own, status.st_uid})

    def mode_of(self, name: str) -> int:
        """Return type and mode of an entry, 0 where there is none; a link is not followed."""
        try:
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return 0

    def read_text(self, name: str) -> str:
        """Return the content of a small regular file; empty where there is none.

        Raises BusError when it can't be read.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=self._descriptor)
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise BusError(f"{self.path / name} can't be read: {error.strerror}") from None
        with open(descriptor, encoding="ascii", errors="replace") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise BusError(f"{self.path / name} is no regular file")
            return file.read(_MAX_KEY_FILE_BYTES)


def seen_below(root: Path, path: Path) -> Path:
    """Return where we find what a process with another root directory calls ``path``."""
    return root / path.relative_to(path.anchor) if path.is_absolute() else path


def peer_uid(descriptor: int) -> int | None:
    """Return the user at the other end of a connected Unix socket.

    None when the descriptor is no such socket, or no longer. It is libzmq's, which may have closed
    it, and by now the number may be that of a file of the job. So it is only looked at, and no copy
    is made: a copy that stays open keeps the job's file, and closing one gives up the job's locks
    on it (fcntl(2)).
    """
    with contextlib.suppress(OSError):
        # not socket.fromfd: a job may have replaced that class by one for greenlets
        connection = _socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, descriptor)
        try:
            data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        finally:
            connection.detach()
        pid, uid, _ = _CREDENTIALS.unpack(data)
        return int(uid) if pid or uid == 0 else None
    return None
