"""The processes of this machine; what may not be read of one is unknown, never an error.

psutil answers what it can. Memory maps, namespaces, cgroups and the pid inside a container
are read from /proc: psutil knows only ``smaps``, which costs a training process a walk over
all its page tables, and nothing of the others. Both look below ``psutil.PROCFS_PATH``.
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
"""Framework → what the path of each of its shared libraries contains."""

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
        """Name of its program; empty when it is gone."""
        return _ask(self._process.name, "")

    @property
    def command(self) -> tuple[str, ...]:
        """Its command line."""
        words: list[str] = _ask(self._process.cmdline, [])
        return tuple(filter(None, words))

    @property
    def environ(self) -> dict[str, str] | None:
        """The environment that it was started with; None: not ours to read."""
        environ: dict[str, str] | None = _ask(self._process.environ, None)
        return environ

    @property
    def maps(self) -> str | None:
        """Its memory map (proc(5)); None: not ours to read."""
        return self._read("maps")

    @property
    def uid(self) -> int:
        """User that it runs as, -1 when it is gone."""
        return _ask(lambda: int(self._process.uids().real), -1)

    @property
    def parent(self) -> int:
        """Pid of its parent, 0 when it has none that can be seen."""
        return _ask(self._process.ppid, 0)

    @property
    def own_pid(self) -> int:
        """Its pid as it sees it itself, in its innermost pid namespace."""
        found = _OWN_PID.search(self._read("status") or "")
        return int(found[1]) if found else self.pid

    @property
    def containers(self) -> frozenset[str]:
        """Every name that its container may go by, seen from inside or outside."""
        match = _CONTAINER_ID.search(self._read("cgroup") or "")
        return frozenset(filter(None, (match and match[0], self.namespace("pid"))))

    @property
    def is_python(self) -> bool:
        """Whether its program is a Python interpreter."""
        program = _ask(self._process.exe, "") or next(iter(self.command), "") or self.name
        return os.path.basename(program).startswith("python")

    @property
    def framework(self) -> str:
        """The framework whose libraries it has loaded, or the empty text."""
        maps = self.maps or ""
        return next((name for name, part in FRAMEWORK_PATHS.items() if part in maps), "")

    @property
    def started_s(self) -> float:
        """Wall clock time of its start in seconds since the epoch; infinity when unknown."""
        return _ask(self._process.create_time, float("inf"))

    @property
    def root(self) -> Path:
        """Where its own root directory can be seen from here."""
        return _directory(self.pid) / "root"

    def namespace(self, kind: str) -> str:
        """Return the id of a namespace, say "pid:[4026531836]"; empty when not readable."""
        return _namespace(self.pid, kind)

    def _read(self, name: str) -> str | None:
        try:
            return (_directory(self.pid) / name).read_text("utf-8", errors="replace")
        except OSError:
            return None


def own_namespace(kind: str) -> str:
    """Return the id of a namespace of this process."""
    return _namespace("self", kind)


def processes() -> Iterator[SeenProcess]:
    """Walk over all processes that can be seen from here, by pid."""
    for pid in sorted(psutil.pids()):
        try:
            yield SeenProcess(pid)
        except psutil.NoSuchProcess:  # it has just ended
            continue


def _ask(question: Callable[[], Answer], unknown: Answer) -> Answer:
    """Return the answer of psutil, or ``unknown`` where the process is gone or not ours."""
    try:
        return question()
    except (psutil.Error, OSError, RuntimeError):  # the last: a /proc that lacks a file
        return unknown


def _namespace(pid: int | str, kind: str) -> str:
    try:
        return os.readlink(_directory(pid) / "ns" / kind)
    except OSError:
        return ""


def _directory(pid: int | str) -> Path:
    return Path(psutil.PROCFS_PATH) / str(pid)
