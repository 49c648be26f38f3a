"""The check for shared memory that torch_npu and MindSpore left behind.

A job of these frameworks makes a file in /dev/shm whose name contains the hour. One rank
creates it and removes it at its end. If that rank is killed, the file stays, and a job that
starts in the same hour attaches to the old file or does without profiling.
"""

from __future__ import annotations

import os
import pwd
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msmon.diagnosis.finding import Finding, fail, ok, warn
from msmon.diagnosis.proc import SeenProcess, processes
from msmon.diagnosis.surroundings import Surroundings

PATTERNS = ("DynamicProfileNpuShm*", "DynamicProfileShm*")


@dataclass(frozen=True)
class Segment:
    """One shared memory file and the processes that have mapped it.

    ``users`` is None if there may be users that are not visible to us.
    """

    path: Path
    uid: int
    age_s: float
    users: tuple[SeenProcess, ...] | None

    @property
    def is_stale(self) -> bool:
        """True if certainly no process uses it."""
        return self.users == ()

    @property
    def orphans(self) -> list[SeenProcess]:
        """The only user, if its parent has ended: the helper process of a rank that was killed."""
        users = self.users or ()
        return [user for user in users if user.parent == 1 and len(users) == 1]

    def describe(self) -> str:
        """Return one line: path, owner, age and users."""
        if self.users is None:
            using = "whose users can't all be seen from here"
        elif self.orphans:
            using = f"used only by pid {self.orphans[0].pid}, whose parent is gone"
        elif self.users:
            using = "used by pid " + ", ".join(str(user.pid) for user in self.users)
        else:
            using = "used by nobody"
        return f"{self.path}: {_user(self.uid)}, {self.age_s / 60:.0f} min old, {using}"


def stale_segments(surroundings: Surroundings) -> Finding:
    """Report shared memory of the frameworks that no process uses; ``--fix`` removes it."""
    check = "shared memory"
    found = list(segments(surroundings))
    stale = [segment for segment in found if segment.is_stale]
    orphaned = [orphan for segment in found for orphan in segment.orphans]
    details = [segment.describe() for segment in found]
    if stale and surroundings.fix:
        return _removed(check, stale, surroundings)
    if stale:
        return warn(
            check,
            f"{len(stale)} left behind by jobs that are gone; new jobs may attach to it or do "
            "without profiling",
            "run: msmon doctor --fix",
            *details,
        )
    if orphaned:
        pids = " ".join(str(process.pid) for process in orphaned)
        return warn(
            check,
            "a polling child outlived its rank and keeps the shared memory of the job",
            f"if that job is over: kill {pids}, then msmon doctor --fix",
            *details,
        )
    return ok(check, "nothing left behind", *details)


def segments(surroundings: Surroundings) -> Iterator[Segment]:
    """Yield the frameworks' shared memory files. Links and other non-regular files are left out."""
    seen = list(processes())
    for pattern in PATTERNS:
        for path in sorted(surroundings.shared_memory.glob(pattern)):
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                users = _users(path, status, seen)
                age_s = max(0.0, time.time() - status.st_mtime)
                yield Segment(path, status.st_uid, age_s, users)


def _users(
    path: Path, status: os.stat_result, seen: list[SeenProcess]
) -> tuple[SeenProcess, ...] | None:
    """Return the processes that have mapped the file; None if some may be invisible.

    The frameworks make it with mode 0600, so only its owner and root can map it. If we are
    neither, their memory maps are closed to us.
    """
    if os.geteuid() not in (0, status.st_uid):
        return None
    # Only the name is compared: a container may mount /dev/shm at another path.
    users = tuple(process for process in seen if f"/{path.name}" in (process.maps or ""))
    first = next((process for process in seen if process.pid == 1), None)
    if not users and (first is None or status.st_mtime < first.started_s):
        return None  # It is older than this container: users outside of it are invisible.
    return users


def _removed(check: str, stale: list[Segment], surroundings: Surroundings) -> Finding:
    removed, kept = [], []
    still_stale = {again.path for again in segments(surroundings) if again.is_stale}
    for segment in stale:
        if segment.path not in still_stale:  # a new job has just attached to it
            continue
        try:
            segment.path.unlink()
            removed.append(f"removed {segment.describe()}")
        except OSError as error:
            kept.append(f"{segment.path} can't be removed: {error.strerror}")
    if kept:
        return fail(check, "not everything could be removed", "run as its owner", *removed, *kept)
    return ok(check, f"{len(removed)} left behind by jobs that are gone were removed", *removed)


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"
