"""Who may write into which TensorBoard folder.

All runs of one process lie below one directory, named after host, job and rank. Host, job and
rank are the process's own words. So what belongs to another user than the daemon's, or to a key,
lies below a directory of that owner: nobody writes beside the runs of somebody else.
TensorBoard follows only the newest file of a folder, so two writers in one folder would hide each
other's data. A lock file in the directory keeps a second writer out, which then takes a directory
of its own. That may be another daemon on a shared file system, or another process of the rank.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from msmon.errors import SinkError
from msmon.sessions import UNKNOWN_RANK, ProcessInfo, SessionInfo
from msmon.sinks.regular_files import open_regular

LOCK_NAME = ".msmon-writer.lock"
MAX_WRITERS = 1000
"""Directories that are tried for one rank. As many live writers of a rank don't exist."""

MAX_COMPONENT_BYTES = 200
"""Longest name of a directory that is made from a text of a process; a file system takes 255."""


MAX_DIRECTORIES = 1024
"""Directories of processes that one user may have. They stay until somebody removes them."""

KEY_FACTOR = 4
"""Multiplies it for a key, because a key may stand for several nodes."""

RECOUNT_S = 60.0
"""Where an owner has too many, they are counted anew after this time: some may be removed."""

_OWNED = ("*/rank_*", "*/pid_*", "*/job_*/rank_*", "*/job_*/pid_*")
"""Directories of processes, below that of the owner."""


class RunDirectory:
    """A directory held by this writer until :meth:`release`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def release(self) -> None:
        """Let other writers in. The lock file stays: removing it would race with them."""
        os.close(self._lock)


class RunDirectories:
    """Finds and locks the directories of processes below ``root``. Belongs to the sink's thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._counts: dict[str, tuple[int, float]] = {}
        """Owner → how many directories it has, and when they were counted (monotonic)."""

    def claim(self, session: SessionInfo) -> RunDirectory:
        """Make and lock the directory for the runs of a session's process.

        Its name is ``[<owner>/]<host>[/job_<id>]/rank_<n>``, or ``pid_<n>`` where the rank is
        unknown. Where a live writer has that one, ``…_pid_<n>`` is tried, then ``…_pid_<n>_2`` and
        so on. On a file system without locks every directory with a lock file counts as another's.
        Raises OSError, and SinkError where the owner has too many directories.
        """
        process = session.process
        owner = "" if session.owner in ("", "uid 0", f"uid {os.geteuid()}") else session.owner
        below = self._root / _component(owner) if owner else self._root
        parent = below / _component(process.host)
        if process.job_id:
            parent /= f"job_{_component(process.job_id)}"
        for name in _names(process):
            is_new = not (parent / name).exists()
            if is_new and owner:
                self._require_room(owner)
            claimed = _lock(parent / name)
            if is_new and owner:
                count, counted_at_s = self._counts[owner]
                self._counts[owner] = count + 1, counted_at_s
            if claimed is not None:
                return claimed
        raise OSError(errno.EBUSY, "has too many writers already", str(parent / name))

    def _require_room(self, owner: str) -> None:
        now_s = time.monotonic()
        most = MAX_DIRECTORIES * (KEY_FACTOR if owner.startswith("key ") else 1)
        count, counted_at_s = self._counts.get(owner, (most, -RECOUNT_S))
        if count < most:
            return
        directory = self._root / _component(owner)
        if now_s >= counted_at_s + RECOUNT_S:
            count = sum(1 for pattern in _OWNED for _ in directory.glob(pattern))
            self._counts[owner] = count, now_s
        if count >= most:
            raise SinkError(f"{directory} has {count} runs", "remove those that are not needed")


def _names(process: ProcessInfo) -> Iterator[str]:
    """Yield what the directory of a process may be called, in the order that they are tried."""
    own = f"pid_{process.pid}"
    if process.rank != UNKNOWN_RANK:
        yield f"rank_{process.rank}"
        own = f"rank_{process.rank}_{own}"
    yield own
    for number in range(2, MAX_WRITERS):
        yield f"{own}_{number}"


def _lock(path: Path) -> RunDirectory | None:
    path.mkdir(parents=True, exist_ok=True)
    new = not (path / LOCK_NAME).exists()
    lock = open_regular(path / LOCK_NAME, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        # This file system has no locks. A directory without a lock file was nobody's until now.
        if not new:
            os.close(lock)
            return None
    return RunDirectory(path, lock)


def _component(text: str) -> str:
    """Turn a text of a process into the name of one directory: ".." and "a/b" lead nowhere else."""
    cleaned = re.sub(r"[^\w.-]", "_", text)
    short = cleaned.encode()[:MAX_COMPONENT_BYTES].decode("utf-8", "ignore")
    return short if short.strip(".") else f"_{short}"
