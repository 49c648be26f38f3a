"""A place to examine: an environment, a /proc of files, and a daemon that answers as told.

``place`` has no daemon, no CANN and no processes until a test adds them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from fixtures.rows import daemon_row, status_row

import msmon
from msmon.bus.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, Reply
from msmon.diagnosis.surroundings import Surroundings
from msmon.errors import DaemonUnreachable

BOOT_S = 1_700_000_000


class Place:
    """Builds ``Surroundings`` below a temporary directory."""

    def __init__(self, directory: Path) -> None:
        self.environ: dict[str, str] = {
            "MSMON_RUNTIME_DIR": str(directory / "run"),
            "MSMON_KEYS_DIR": str(directory / "keys"),
            "PATH": str(directory / "bin"),
            "HOME": str(directory),
        }
        self.proc = directory / "proc"
        self.shared_memory = directory / "shm"
        self.reply: Reply | None = None
        self.proc.mkdir()
        self.shared_memory.mkdir()
        (self.proc / "stat").write_text(f"cpu 1 2 3\nbtime {BOOT_S}\n")
        self.add_process(1, ["/sbin/init"], name="init", parent=0)

    def surroundings(self, fix: bool = False, remote: bool = False) -> Surroundings:
        def ask() -> Reply:
            if self.reply is None:
                raise DaemonUnreachable("no daemon runs on this machine", "start msmon-daemon")
            return self.reply

        return Surroundings(self.environ, ask, remote, fix, self.shared_memory)

    def answer(self, *rows: dict[str, Any], **daemon: Any) -> None:
        """Let a daemon of this version answer with these processes."""
        facts = {
            "version": msmon.__version__,
            "protocol": f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}",
            "host": "node",
            "pid": 77,
            "uid": 0,
            "listens": ["ipc:///run/msmon/daemon.sock"],
            "sinks": [],
        }
        complete = [status_row(**{"version": msmon.__version__, "pid": 1, **row}) for row in rows]
        self.reply = Reply("ok", rows=complete, daemon=daemon_row(**{**facts, **daemon}))

    def add_process(
        self,
        pid: int,
        command: list[str],
        name: str = "python",
        parent: int = 1,
        environ: dict[str, str] | None = None,
        maps: tuple[str, ...] = (),
        own_pid: int | None = None,
        namespace: str = "pid:[1]",
        started_s: float | None = None,
    ) -> None:
        """Add a process as /proc shows it; ``maps`` are paths that it has mapped."""
        directory = self.proc / str(pid)
        (directory / "ns").mkdir(parents=True)
        (directory / "ns" / "pid").symlink_to(namespace)
        (directory / "root").symlink_to("/")
        (directory / "comm").write_text(f"{name}\n")
        (directory / "cmdline").write_text("\0".join(command) + "\0")
        pairs = [f"{key}={value}\0" for key, value in (environ or {}).items()]
        (directory / "environ").write_text("".join(pairs))
        (directory / "maps").write_text(
            "".join(f"7f00-7f01 r-xp 00000000 08:01 99   {path}\n" for path in maps)
        )
        (directory / "status").write_text(
            f"Name:\t{name}\nPPid:\t{parent}\nUid:\t{os.getuid()}\t0\t0\t0\n"
            f"NSpid:\t{pid}\t{own_pid or pid}\n"
        )
        started_s = time.time() - 3600 if started_s is None else started_s
        ticks = int((started_s - BOOT_S) * os.sysconf("SC_CLK_TCK"))
        (directory / "stat").write_text(
            f"{pid} ({name}) " + " ".join(map(str, ["S", parent, *[0] * 17, ticks, *[0] * 32]))
        )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(place.proc))
    return place


@pytest.fixture
def find(place: Place) -> Callable[..., Any]:
    """Run one check in ``place``."""

    def run(check: Callable[[Surroundings], Any], **how: bool) -> Any:
        return check(place.surroundings(**how))

    return run
