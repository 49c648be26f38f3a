"""With whose rights an output process works, and how it takes them on.

A root daemon starts one output process per user. Before that process looks at anything the
user has a hand in, it becomes that user for good: groups, group and user id, no new
privileges, limits. A link or a planted file can then only lead where that user could have
gone anyway. A daemon that is not root, or lacks CAP_SETUID, can't do this; it writes
as itself for its own user, and says so for others. For the holders of TCP keys every daemon
writes as itself, and only where nobody else could lead it elsewhere.
"""

from __future__ import annotations

import ctypes
import logging
import os
import pwd
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

from msmon.daemon.access.owners import Owner
from msmon.errors import SinkError

NOBODY_GROUP = 65534
"""Group of a user whom this machine does not know, where no process has shown one."""

UMASK = 0o027

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_CAP_SETGID, _CAP_SETUID = 6, 7

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Limits of one output process, in bytes and numbers; they are lowered, never raised.

    Address space, not resident memory: the libraries of a sink alone reserve a part of it.
    """

    file_bytes: int = 1 << 40
    address_space_bytes: int = 8 << 30
    open_files: int = 4096


@dataclass(frozen=True)
class Rights:
    """A user's ids. ``groups``: all supplementary groups."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def may_become_others() -> bool:
    """Whether this process may take on another user's ids (capabilities(7))."""
    if os.geteuid() != 0:
        return False
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return True  # no /proc: the attempt will tell
    (line,) = (line for line in status.splitlines() if line.startswith("CapEff:"))
    capabilities = int(line.split()[1], 16)
    return bool(capabilities >> _CAP_SETUID & 1 and capabilities >> _CAP_SETGID & 1)


def rights_for(owner: Owner) -> Rights | None:
    """Return the rights that an owner's files are written with; None: the daemon's own.

    May ask the user database, and wait for it. Raises SinkError when this daemon can't
    take the rights on.
    """
    if owner.uid in (-1, os.geteuid()):
        return None
    if os.geteuid() != 0:
        return None  # below its export roots, as itself
    if not may_become_others():
        raise SinkError(
            f"this daemon can't write files as {owner.name}: it lacks CAP_SETUID or CAP_SETGID",
            "give both to the daemon, or export from a daemon of that user",
        )
    try:
        entry = pwd.getpwuid(owner.uid)
    except KeyError:
        return Rights(owner.uid, group_of(owner), ())
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return Rights(owner.uid, entry.pw_gid, tuple(groups))


def group_of(owner: Owner) -> int:
    """Return the group of a local user: by the user database, else that of the user's process.

    A user of a container, say, is known to the kernel only.
    """
    try:
        return pwd.getpwuid(owner.uid).pw_gid
    except KeyError:
        return owner.gid if owner.gid >= 0 else NOBODY_GROUP


def lends_own_rights(owner: Owner) -> bool:
    """Return whether this daemon writes an owner's files as itself, though they are not its own.

    Those of TCP keys always; below a daemon that is not root those of other local users too.
    """
    if owner.uid in (0, os.geteuid()):
        return False
    return owner.uid == -1 or os.geteuid() != 0


def warn_of_missing_rights() -> None:
    """Log at the start of a root daemon what it will not be able to do."""
    if os.geteuid() == 0 and not may_become_others():
        _log.warning(
            "this daemon lacks CAP_SETUID or CAP_SETGID: sessions of other users can't be exported"
        )


def restrict(rights: Rights | None, limits: Limits | None, parent: int) -> None:
    """Take on the rights for good, in the output process; ``parent`` is the daemon's pid.

    Raises OSError when any step fails: then nothing may be written.
    """
    if rights is not None:
        os.setgroups(rights.groups)
        os.setresgid(rights.gid, rights.gid, rights.gid)
        os.setresuid(rights.uid, rights.uid, rights.uid)
        if os.getresuid() != (rights.uid,) * 3 or os.getresgid() != (rights.gid,) * 3:
            raise PermissionError(f"could not become uid {rights.uid}")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # A change of ids clears this one, so it comes after. It ends the process even where it
    # hangs in a call when the daemon dies.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ProcessLookupError("the daemon has ended")
    os.umask(UMASK)
    if limits is not None:
        _limit(limits)


def _limit(limits: Limits) -> None:
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_AS, limits.address_space_bytes)
    _lower(resource.RLIMIT_NOFILE, limits.open_files)


def _lower(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY or value < hard:
        resource.setrlimit(which, (value, value))


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
