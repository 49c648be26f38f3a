"""Below which directories users may export, and the personal ones that root makes there.

A user names directories below an export root. Where only root can write the root itself, as
it should be, nobody else could make a first directory there. So a root daemon makes one
for each user who asks: ``EXPORT_ROOT/NAME``, with the user's login name, or its uid where it
has none, belonging to that user. What lies in it is the user's own affair. With
``--export-root /data/msmon``, alice exports to ``/data/msmon/alice`` or below it. A root that
everybody may write, as /tmp, needs none of this.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Sequence
from pathlib import Path

from msmon.bus.places import Unguarded, require_guarded
from msmon.daemon.access.owners import Owner
from msmon.daemon.outputs.rights import group_of
from msmon.errors import MsmonError, SinkError, UsageError
from msmon.sinks.exports import DIRECTORY_MODE, require_below

_HOLD = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ExportRoots:
    """The export roots in force. ``replace`` is called on the broker's loop; all may read."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = tuple(roots)

    @property
    def paths(self) -> tuple[str, ...]:
        """The roots, as they were named."""
        return tuple(map(str, self._roots))

    def replace(self, roots: Sequence[Path]) -> None:
        """Let other roots be in force from the next start command on."""
        self._roots = tuple(roots)

    def require(self, resolved: str) -> None:
        """Raise UsageError unless a path without links lies below a root."""
        require_below(Path(resolved), self._roots)

    def advised(self, refusal: MsmonError, path: str, owner: Owner) -> MsmonError:
        """Return a path's refusal, with the owner's personal directories if it lies in none."""
        personal = [root / _login(owner.uid) for root in self._roots if owner.uid > 0]
        wanted = Path(os.path.normpath(path))
        inside = any(place == wanted or place in wanted.parents for place in personal)
        if os.geteuid() != 0 or not personal or inside:
            return refusal
        places = " or ".join(map(str, personal))
        kind = UsageError if isinstance(refusal, UsageError) else SinkError
        next_step = f"{refusal.next_step}; " if refusal.next_step else ""
        return kind(refusal.message, f"{next_step}for this user there is {places}")

    def make_personal(self, path: str, owner: Owner) -> None:
        """Make an owner's personal directory where ``path`` lies in it and it is missing.

        Only root does this, and only directly below a root that nobody else can change.
        Raises SinkError.
        """
        if os.geteuid() != 0 or owner.uid <= 0:
            return
        for root in (Path(os.path.realpath(root)) for root in self._roots):
            personal = root / _login(owner.uid)
            wanted = Path(os.path.normpath(path))
            if personal == wanted or personal in wanted.parents:
                try:
                    _make(root, personal.name, owner)
                except OSError as error:
                    raise SinkError(f"can't make {personal}: {error.strerror}") from error


def require_closed(directory: Path, make: bool = False) -> None:
    """Raise SinkError where anybody but root and this process's user could change the place.

    For data of others that the daemon's own user writes, as that of TCP keys: in a directory of
    a local user it would be lent rights. ``make`` makes the directory where it is missing.
    """
    try:
        require_guarded(directory, make, DIRECTORY_MODE)
    except Unguarded as error:
        raise SinkError(
            "--log-file: this data is written by the daemon's own user, so nobody else may be able "
            f"to change its directory, but {error.message}",
            f"choose one below an export root of uid {os.geteuid()} that is closed to others",
        ) from None
    except OSError as error:
        raise SinkError(f"--log-file: can't use {directory}: {error.strerror}") from error


def _login(uid: int) -> str:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
    return name if name not in (".", "..") and "/" not in name else str(uid)


def _make(root: Path, name: str, owner: Owner) -> None:
    """Make ``root/name`` for a user, where only root can put anything at that place."""
    holding = os.open("/", _HOLD)
    try:
        for part in (*root.parts[1:], ""):
            if _others_may_change(holding, is_root=not part):
                return  # they make their directories themselves
            if part:
                inner = os.open(part, _HOLD, dir_fd=holding)
                os.close(holding)
                holding = inner
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=holding)
            try:
                _give(name, holding, owner)
            except OSError:  # else it would stay root's, and be found there for ever
                os.rmdir(name, dir_fd=holding)
                raise
    finally:
        os.close(holding)


def _others_may_change(directory: int, is_root: bool) -> bool:
    """Whether anybody but root could put something else at the place where we are going.

    In a sticky directory, as /tmp, others can't move away what belongs to root.
    """
    found = os.fstat(directory)
    writable = found.st_mode & 0o022
    sticky = found.st_mode & stat.S_ISVTX and not is_root
    return found.st_uid != 0 or bool(writable and not sticky)


def _give(name: str, holding: int, owner: Owner) -> None:
    """Give a directory that was made just now to a user. Needs CAP_CHOWN, and no CAP_FOWNER."""
    made = os.open(name, _HOLD, dir_fd=holding)
    try:
        os.fchmod(made, DIRECTORY_MODE)
        os.fchown(made, owner.uid, group_of(owner))
    finally:
        os.close(made)
