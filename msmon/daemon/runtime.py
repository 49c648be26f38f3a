"""The daemon's runtime directory: its lock, its socket file, its public key.

A daemon locks a file in it, so that no second daemon can use the directory. The file holds
its pid. The kernel releases the lock when the daemon ends, even if it is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from msmon.bus.endpoints import PUBLIC_KEY_FILE, socket_path
from msmon.bus.keys import key_file_text, write_replacing
from msmon.bus.places import require_guarded
from msmon.errors import BusError, UsageError

_log = logging.getLogger(__name__)

LOCK_FILE = "daemon.lock"


@dataclass(frozen=True)
class LocalAccess:
    """Which local users may connect, besides root and the daemon's own user."""

    others: bool = False
    """True: all users may connect."""
    group_id: int = -1
    """Otherwise the members of this group may; -1: nobody else."""

    @classmethod
    def parse(cls, text: str) -> LocalAccess:
        """Parse "nobody", "everybody" or the name of a group. Raises UsageError."""
        if text in ("nobody", "everybody"):
            return cls(others=text == "everybody")
        try:
            return cls(group_id=grp.getgrnam(text).gr_gid)
        except KeyError:
            raise UsageError(
                f"--allow-users: there is no group {text!r}",
                "write nobody, everybody or the name of a group",
            ) from None

    @property
    def any_others(self) -> bool:
        """True if anybody else may connect."""
        return self.others or self.group_id >= 0

    def mode(self, rights: int) -> int:
        """Return a file mode with ``rights`` (0 to 7) for the owner and all who may connect."""
        group = rights if self.any_others else 0
        return rights << 6 | group << 3 | (rights if self.others else 0)


class RuntimeDirectory:
    """The directory that one daemon holds from :meth:`claim` to :meth:`release`."""

    def __init__(self, path: Path, access: LocalAccess) -> None:
        self.path = path
        self.socket = socket_path(path)
        self._access = access
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """Address of the local socket."""
        return f"ipc://{self.socket}"

    def claim(self) -> None:
        """Make the directory and take its lock.

        Raises BusError if another daemon has the lock (it names its pid), if others could change
        the directory (Unguarded), or if it can't be used.
        """
        try:
            self._prepare()
            self._take_lock()
        except OSError as error:
            raise BusError(
                f"can't use the runtime directory {self.path}: {error.strerror}",
                "set MSMON_RUNTIME_DIR, or give --runtime-dir",
            ) from None
        if self.socket.is_dir():
            self.release()
            raise BusError(
                f"{self.socket} is a directory where the socket should be",
                f"remove it; into containers mount {self.path}, not the socket itself",
            )

    def _prepare(self) -> None:
        wanted = self._access.mode(5) | 0o700
        require_guarded(self.path)
        if not self.path.is_dir():
            self.path.mkdir(mode=0o700, parents=True)
            require_guarded(self.path)  # in /tmp another may have been faster
            self._give_to_group(self.path)
            self.path.chmod(wanted)
        if wanted & ~stat.S_IMODE(self.path.stat().st_mode):
            _log.warning(
                "%s is closed to other users; run: chmod %o %s", self.path, wanted, self.path
            )

    def _give_to_group(self, path: Path) -> None:
        if self._access.group_id >= 0:
            os.chown(path, -1, self._access.group_id)

    def _take_lock(self) -> None:
        path = self.path / LOCK_FILE
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 20).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            raise BusError(
                f"a daemon with pid {holder} already serves {self.path}",
                "stop it, or give this one another --runtime-dir",
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def publish(self, public_key: bytes | None) -> None:
        """Open the bound socket to all who may connect, and write the public key beside it.

        None (a daemon without encryption) removes an old key file.
        """
        self._give_to_group(self.socket)
        self.socket.chmod(self._access.mode(6))
        public = self.path / PUBLIC_KEY_FILE
        if public_key is None:
            with contextlib.suppress(FileNotFoundError):
                public.unlink()
        else:
            write_replacing(public, key_file_text({"public-key": public_key.decode()}), 0o644)

    @property
    def socket_exists(self) -> bool:
        """True if the socket file exists."""
        return self.socket.is_socket()

    def claim_again(self) -> None:
        """Make directory and lock again if something has removed them, for example tmpfiles.d.

        Raises what :meth:`claim` raises.
        """
        if (self.path / LOCK_FILE).exists():
            return
        self.release()
        self.claim()

    def release(self) -> None:
        """Give the lock back, and leave its file.

        If the file were removed, a daemon could hold a lock on the removed file, and another
        daemon a lock on a new one.
        """
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
