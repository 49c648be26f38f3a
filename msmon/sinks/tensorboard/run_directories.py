"""Who may write into which TensorBoard folder.

All runs of one process lie below one directory, named after host, job and rank.
TensorBoard follows only the newest file of a folder, so two writers in one folder would hide each
other's data. A lock file in the directory keeps a second writer out, which then takes a directory
of its own. That may be another daemon on a shared file system, or another process of the rank.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import re
from pathlib import Path

from msmon.sessions import UNKNOWN_RANK, ProcessInfo
from msmon.sinks.regular_files import open_regular

LOCK_NAME = ".msmon-writer.lock"
MAX_WRITERS = 1000
"""Directories that are tried for one rank. As many live writers of a rank don't exist."""

MAX_COMPONENT_BYTES = 200
"""Longest name of a directory that is made from a text of a process; a file system takes 255."""


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

    Its name is ``<host>[/job_<id>]/rank_<n>``, or ``pid_<n>`` where the rank is unknown. Where a
    live writer has that one, ``…_pid_<n>`` is tried, then ``…_pid_<n>_2`` and so on. On a file
    system without locks every directory with a lock file counts as another's. Raises OSError.
    """
    parent = root / _component(process.host)
    if process.job_id:
        parent /= f"job_{_component(process.job_id)}"
    known = process.rank != UNKNOWN_RANK
    name = f"rank_{process.rank}" if known else f"pid_{process.pid}"
    own = f"{name}_pid_{process.pid}" if known else name
    candidates = itertools.chain(
        [name, own] if known else [name], (f"{own}_{number}" for number in range(2, MAX_WRITERS))
    )
    for candidate in candidates:
        claimed = _lock(parent / candidate)
        if claimed is not None:
            return claimed
    raise OSError(errno.EBUSY, "has too many writers already", str(parent / own))


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
