"""Processes as /proc shows them; what may not be read is None, never an error."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FRAMEWORK_PATHS = {"torch_npu": "/torch_npu/", "mindspore": "/mindspore/"}
"""Framework → what the path of each of its shared libraries contains."""

NAMESPACES = ("pid", "mnt", "net", "ipc")

_CONTAINER_ID = re.compile(r"\b[0-9a-f]{64}\b")


@dataclass(frozen=True)
class SeenProcess:
    """One process by its directory in /proc. ``pid`` is the number in our own namespace."""

    directory: Path
    pid: int

    @property
    def name(self) -> str:
        """Name of its main thread, at most 15 characters."""
        return (self._read("comm") or "").strip()

    @property
    def command(self) -> tuple[str, ...]:
        """Its command line."""
        return tuple(word for word in (self._read("cmdline") or "").split("\0") if word)

    @property
    def environ(self) -> dict[str, str] | None:
        """The environment that it was started with; None: not ours to read."""
        text = self._read("environ")
        if text is None:
            return None
        return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)

    @property
    def maps(self) -> str | None:
        """Its memory map; None: not ours to read."""
        return self._read("maps")

    @property
    def uid(self) -> int:
        """User that it runs as, -1 when it is gone."""
        return int((self._status("Uid") or "-1").split()[0])

    @property
    def parent(self) -> int:
        """Pid of its parent."""
        return int(self._status("PPid") or "0")

    @property
    def own_pid(self) -> int:
        """Its pid as it sees it itself, in its innermost pid namespace."""
        return int((self._status("NSpid") or str(self.pid)).split()[-1])

    @property
    def containers(self) -> frozenset[str]:
        """Every name that its container may go by, seen from inside or outside."""
        match = _CONTAINER_ID.search(self._read("cgroup") or "")
        names = {match[0]} if match else set()
        namespace = self.namespace("pid")
        return frozenset(names | ({namespace} if namespace else set()))

    @property
    def is_python(self) -> bool:
        """Whether its program is a Python interpreter."""
        try:
            program = os.path.basename(os.readlink(self.directory / "exe"))
        except OSError:
            program = os.path.basename(self.command[0]) if self.command else self.name
        return program.startswith("python")

    @property
    def framework(self) -> str:
        """The framework whose libraries it has loaded, or the empty text."""
        maps = self.maps or ""
        return next((name for name, part in FRAMEWORK_PATHS.items() if part in maps), "")

    @property
    def started_s(self) -> float:
        """Wall clock time of its start in seconds since the epoch; infinity when unknown."""
        # the command in parentheses may hold blanks and parentheses itself (proc(5))
        fields = (self._read("stat") or "").rpartition(")")[2].split()
        booted_s = _boot_time_s(self.directory.parent)
        if len(fields) < 20 or booted_s is None:
            return float("inf")
        return booted_s + int(fields[19]) / os.sysconf("SC_CLK_TCK")

    def namespace(self, kind: str) -> str:
        """Return the id of a namespace, say "pid:[4026531836]"; empty when not readable."""
        try:
            return os.readlink(self.directory / "ns" / kind)
        except OSError:
            return ""

    def _status(self, field: str) -> str | None:
        for line in (self._read("status") or "").splitlines():
            name, _, value = line.partition(":")
            if name == field:
                return value.strip()
        return None

    def _read(self, name: str) -> str | None:
        try:
            return (self.directory / name).read_text("utf-8", errors="replace")
        except OSError:
            return None


def _boot_time_s(proc: Path) -> int | None:
    try:
        text = (proc / "stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in text.splitlines() if line[:6] == "btime "), None)


def own_process(proc: Path) -> SeenProcess:
    """Return this process."""
    return SeenProcess(proc / "self", os.getpid())


def processes(proc: Path) -> Iterator[SeenProcess]:
    """Walk over all processes that can be seen from here."""
    try:
        names = sorted((entry for entry in os.listdir(proc) if entry.isdecimal()), key=int)
    except OSError:
        return
    for name in names:
        yield SeenProcess(proc / name, int(name))
