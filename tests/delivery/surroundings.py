"""What the fault test breaks: a small disk to fill, a network to cut, a clock to shift.

Disk and network need root; ``possible()`` returns whether they can be made.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path
from types import TracebackType

FILLER = "filler"
_ROOM_LEFT_BYTES = 64 << 10


def possible() -> bool:
    """Return whether this process may mount file systems and make network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        check=False,
    )
    return tried.returncode == 0


class SmallDisk:
    """A mounted tmpfs that can be filled and emptied."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self.directory = directory
        self._size_bytes = size_bytes

    def __enter__(self) -> SmallDisk:
        self.directory.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={self._size_bytes}", "tmpfs", self.directory)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _run("umount", "--lazy", self.directory)

    def fill(self) -> None:
        """Take all free space but a little, also if other processes write meanwhile."""
        with (self.directory / FILLER).open("wb") as file:
            size_bytes, piece_bytes = 0, self._size_bytes
            while piece_bytes >= _ROOM_LEFT_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), size_bytes, piece_bytes)
                    size_bytes += piece_bytes
                except OSError:
                    piece_bytes //= 2

    def empty(self) -> None:
        (self.directory / FILLER).unlink()


class Network:
    """A network namespace whose link to this one can be cut."""

    def __init__(self, number: int = os.getpid()) -> None:
        self.name = f"msmon{number}"
        self._ours, self._theirs = f"ma{number}", f"mb{number}"
        network = f"198.18.{number % 250}"  # RFC 2544 reserves these addresses for tests.
        self.host, self._guest = f"{network}.1", f"{network}.2"

    @property
    def prefix(self) -> tuple[str, ...]:
        """First words of a command line that runs a command inside the namespace."""
        return ("ip", "netns", "exec", self.name)

    def __enter__(self) -> Network:
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self._ours, "type", "veth", "peer", "name", self._theirs)
        _run("ip", "link", "set", self._theirs, "netns", self.name)
        _run("ip", "address", "add", f"{self.host}/30", "dev", self._ours)
        _run("ip", "link", "set", self._ours, "up")
        _run(*self.prefix, "ip", "address", "add", f"{self._guest}/30", "dev", self._theirs)
        _run(*self.prefix, "ip", "link", "set", self._theirs, "up")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _run("ip", "link", "delete", self._ours)
        _run("ip", "netns", "delete", self.name)

    def cut(self) -> None:
        _run("ip", "link", "set", self._ours, "down")

    def mend(self) -> None:
        _run("ip", "link", "set", self._ours, "up")


class Clock:
    """The wall clock of all processes that are started with the environment ``variables``."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.shift(0)
        self.variables = {
            "SHIFTED_CLOCK": str(file),
            "PYTHONPATH": os.pathsep.join(
                [
                    str(Path(__file__).parent / "shifted_clock"),
                    *filter(None, [os.environ.get("PYTHONPATH")]),
                ]
            ),
        }

    def shift(self, seconds: float) -> None:
        """Set the difference between the clock and the true time, also for running processes."""
        text = struct.pack("<q", int(seconds * 1e9))
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(text)


def _run(*command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
