"""The agent's log file: bounded in size and rate, never the job's own streams.

Only where MSMONITOR_LOG_PATH is set; the file is made at the first line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

DIRECTORY = "msmonitor_log"
MAX_FILE_BYTES = 4 << 20
LINES_PER_PERIOD = 20
PERIOD_S = 10.0


class AgentLog:
    """Lines of one process; usable from any thread, silent when it can't write."""

    def __init__(self, directory: Path | None) -> None:
        self.path = None if directory is None else directory / f"msmon_{os.getpid()}.log"
        self._period_start_s = 0.0
        self._lines_in_period = 0
        self._suppressed = 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> AgentLog:
        """Return the log that MSMONITOR_LOG_PATH asks for, or one that drops everything."""
        root = environ.get("MSMONITOR_LOG_PATH")
        return cls(Path(root) / DIRECTORY if root else None)

    def write(self, text: str) -> None:
        """Append one line, unless there were too many in the last seconds."""
        if self.path is None or not self._admit():
            return
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        note = f" ({self._suppressed} lines left out)" if self._suppressed else ""
        self._suppressed = 0
        line = f"{stamp} [{os.getpid()}] {' / '.join(text.splitlines())}{note}\n"
        try:
            self._append(self.path, line.encode("utf-8", "backslashreplace"))
        except OSError:
            self._suppressed += 1

    def _admit(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._period_start_s > PERIOD_S:
            self._period_start_s = now_s
            self._lines_in_period = 0
        self._lines_in_period += 1
        if self._lines_in_period <= LINES_PER_PERIOD:
            return True
        self._suppressed += 1
        return False

    @staticmethod
    def _append(path: Path, line: bytes) -> None:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > MAX_FILE_BYTES:
            path.replace(path.with_suffix(".log.1"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o640)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
