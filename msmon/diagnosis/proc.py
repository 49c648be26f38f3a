"""The processes of this machine, as far as this process may read them.

A property that can't be read has a value for "unknown" and raises nothing: processes end at
any time, and those of other users are closed to us.

Most answers come from psutil. Memory maps, namespaces, cgroups and the pid inside a container
are read from /proc here. psutil doesn't know the last three, and it reads the maps from
``smaps``, for which the kernel walks all page tables of the training process. Both look below
``psutil.PROCFS_PATH``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

Answer = TypeVar("Answer")

FRAMEWORK_PATHS = {"torch_npu": "/torch_npu/", "mindspore": "/mindspore/"}
"""Framework → a part of the path of all its shared libraries."""

NAMESPACES = ("pid", "mnt", "net", "ipc")

_CONTAINER_ID = re.compile(r"\b[0-9a-f]{64}\b")
_OWN_PID = re.compile(r"^NSpid:.*\s(\d+)$", re.MULTILINE)


class SeenProcess:
    """One process. ``pid`` is its number in our own pid namespace."""

    def __init__(self, pid: int) -> None:
        """Raises psutil.NoSuchProcess."""
        self.pid = pid
        self._process = psutil.Process(pid)

    @property
    def name(self) -> str:
        """Name of its program; "" if it has ended."""
        return _ask(self._process.name, "")

    @property
    def command(self) -> tuple[str, ...]:
        """Its command line without empty words; () if unknown."""
        words: list[str] = _ask(self._process.cmdline, [])
        return tuple(filter(None, words))

    @property
    def environ(self) -> dict[str, str] | None:
        """The environment that it was started with; None if we may not read it."""
        environ: dict[str, str] | None = _ask(self._process.environ, None)
        return environ

    @property
    def maps(self) -> str | None:
        """The text of its memory map (proc(5)); None if we may not read it."""
        return self._read("maps")

    @property
    def uid(self) -> int:
        """Real user id; -1 if it has ended."""
        return _ask(lambda: int(self._process.uids().real), -1)

    @property
    def parent(self) -> int:
        """Pid of its parent; 0 if the parent isn't visible here."""
        return _ask(self._process.ppid, 0)

    @property
    def own_pid(self) -> int:
        """Its pid in its own pid namespace: what ``os.getpid()`` returns inside a container."""
        found = _OWN_PID.search(self._read("status") or "")
        return int(found[1]) if found else self.pid

    @property
    def containers(self) -> frozenset[str]:
        """The names by which an agent may have reported its container.

        These are the 64 digits in its cgroup and the id of its pid namespace.
        """
        match = _CONTAINER_ID.search(self._read("cgroup") or "")
        return frozenset(filter(None, (match and match[0], self.namespace("pid"))))

    @property
    def is_python(self) -> bool:
        """True if its program is a Python interpreter."""
        program = _ask(self._process.exe, "") or next(iter(self.command), "") or self.name
        return os.path.basename(program).startswith("python")

    @property
    def framework(self) -> str:
        """The framework whose libraries it has loaded, or ""."""
        maps = self.maps or ""
        return next((name for name, part in FRAMEWORK_PATHS.items() if part in maps), "")

    @property
    def started_s(self) -> float:
        """Wall clock time of its start in seconds since the epoch; infinity if unknown."""
        return _ask(self._process.create_time, float("inf"))

    @property
    def root(self) -> Path:
        """The path by which we see its root directory, which may be that of a container."""
        return _directory(self.pid) / "root"

    def namespace(self, kind: str) -> str:
        """Return the id of a namespace, for example "pid:[4026531836]"; "" if unreadable."""
        return _namespace(self.pid, kind)

    def _read(self, name: str) -> str | None:
        try:
            return (_directory(self.pid) / name).read_text("utf-8", errors="replace")
        except OSError:
            return None


def own_namespace(kind: str) -> str:
    """Return the id of a namespace of the calling process; "" if unreadable."""
    return _namespace("self", kind)


def processes() -> Iterator[SeenProcess]:
    """Yield all processes that are visible here, in the order of their pids."""
    for pid in sorted(psutil.pids()):
        try:
            yield SeenProcess(pid)
        except psutil.NoSuchProcess:  # it has ended since ``pids``
            continue


def _ask(question: Callable[[], Answer], unknown: Answer) -> Answer:
    """Return the answer of psutil, or ``unknown`` if the process has ended or is closed to us."""
    try:
        return question()
    except (psutil.Error, OSError, RuntimeError):  # RuntimeError: /proc lacks a file
        return unknown


def _namespace(pid: int | str, kind: str) -> str:
    try:
        return os.readlink(_directory(pid) / "ns" / kind)
    except OSError:
        return ""


def _directory(pid: int | str) -> Path:
    return Path(psutil.PROCFS_PATH) / str(pid)
