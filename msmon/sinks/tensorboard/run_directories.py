"""Who may write into which TensorBoard folder.

All runs of one process lie below one directory, named after host, job and rank.
A lock file in it keeps a second live writer out, be it another daemon on a shared
file system or another process of the same rank: that one gets a directory of its
own. TensorBoard follows only the newest file of a folder, so two writers in one
folder would hide each other's data.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
from pathlib import Path

from msmon.sessions import UNKNOWN_RANK, ProcessInfo

LOCK_NAME = ".msmon-writer.lock"


class RunDirectory:
    """A directory held by this writer until :meth:`release`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def release(self) -> None:
        """Let other writers in. The lock file stays: removing it would race with them."""
        os.close(self._lock)


def claim_run_directory(root: Path, process: ProcessInfo) -> RunDirectory:
    """Make and lock the directory for the runs of ``process`` below ``root``.

    ``<host>[/job_<id>]/rank_<n>``, or ``pid_<n>`` where the rank is unknown. Taken
    by a live writer, or on a file system without locks: ``…_pid_<n>``, then
    ``…_pid_<n>_2`` and so on. Raises OSError.
    """
    parent = root / _component(process.host)
    if process.job_id:
        parent /= f"job_{_component(process.job_id)}"
    known = process.rank != UNKNOWN_RANK
    name = f"rank_{process.rank}" if known else f"pid_{process.pid}"
    own = f"{name}_pid_{process.pid}" if known else name
    candidates = itertools.chain(
        [name, own] if known else [name], (f"{own}_{number}" for number in itertools.count(2))
    )
    for candidate in candidates:
        claimed = _lock(parent / candidate)
        if claimed is not None:
            return claimed
    raise AssertionError("the candidates never end")


def _lock(path: Path) -> RunDirectory | None:
    path.mkdir(parents=True, exist_ok=True)
    new = not (path / LOCK_NAME).exists()
    lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        # no locks on this file system: a directory that nobody used before is ours
        if not new:
            os.close(lock)
            return None
    return RunDirectory(path, lock)


def _component(text: str) -> str:
    """Turn a name from outside into one harmless path component."""
    cleaned = re.sub(r"[^\w.-]", "_", text)
    return cleaned if cleaned.strip(".") else f"_{cleaned}"
