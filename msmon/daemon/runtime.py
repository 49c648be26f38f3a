"""The daemon's runtime directory: its lock, its socket file, its public key.

A lock on a file that holds the daemon's pid keeps a second daemon out; the kernel
drops it however the first one ends.
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
from msmon.errors import BusError, UsageError

_log = logging.getLogger(__name__)

LOCK_FILE = "daemon.lock"


@dataclass(frozen=True)
class LocalAccess:
    """Which local users may connect, besides root and the daemon's own user.

    ``group_id`` is only used where ``others`` is False; -1: nobody.
    """

    others: bool = False
    group_id: int = -1

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
        """Whether anybody else may connect."""
        return self.others or self.group_id >= 0

    def mode(self, rights: int) -> int:
        """Return a file mode: ``rights`` (0 to 7) for the owner and for those who may connect."""
        group = rights if self.any_others else 0
        return rights << 6 | group << 3 | (rights if self.others else 0)


class RuntimeDirectory:
    """The directory of one daemon, from :meth:`claim` to :meth:`release`."""

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

        Raises BusError naming the pid of the daemon that has it, or what is wrong
        with the directory.
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
        if not self.path.is_dir():
            self.path.mkdir(mode=0o700, parents=True)
            self._give_to_group(self.path)
            self.path.chmod(wanted)
        status = self.path.stat()
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid not in (0, os.geteuid()) or mode & 0o022:
            raise BusError(
                f"the runtime directory {self.path} (uid {status.st_uid}, mode {mode:03o}) can be "
                "changed by other users",
                f"run: chmod 755 {self.path}, or give another --runtime-dir",
            )
        if wanted & ~mode:
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
        """Open the bound socket to those who may connect, and put the public key beside it."""
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
        """Whether the socket file is still there."""
        return self.socket.is_socket()

    def claim_again(self) -> None:
        """Restore the directory and the lock where a cleaner removed them. Raises BusError."""
        if (self.path / LOCK_FILE).exists():
            return
        self.release()
        self.claim()

    def release(self) -> None:
        """Give the lock back. The lock file stays: removing it would let two daemons in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
