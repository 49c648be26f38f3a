"""The agent's log file: bounded in size and rate, never the job's own streams.

Only where MSMONITOR_LOG_PATH is set; the file is made at the first line. That directory may
be shared with other users, so nothing found there is trusted: see :class:`BoundedFile`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from msmon.logs import BoundedFile, OneLineFormatter, RateFilter
from msmon.threads import RLock

DIRECTORY = "msmonitor_log"
MAX_FILE_BYTES = 4 << 20
LINES_PER_PERIOD = 20
PERIOD_S = 10.0

_FORMAT = "%(asctime)s [%(process)d] %(message)s"
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%z"


class AgentLog:
    """Lines of one process; usable from any thread, silent when it can't write.

    The handler is used without a ``logging.Logger``: what a job does to its loggers
    (``logging.disable``, ``dictConfig``) does not reach it.
    """

    def __init__(self, directory: Path | None) -> None:
        self.path = None if directory is None else directory / f"msmon_{os.getpid()}.log"
        self._file: BoundedFile | None = None
        if self.path is not None:
            self._file = BoundedFile(
                self.path, MAX_FILE_BYTES, older_files=1, mode=0o640, shared_place=True
            )
            self._file.lock = RLock()
            self._file.setFormatter(OneLineFormatter(_FORMAT, _TIME_FORMAT))
            self._file.addFilter(RateFilter(LINES_PER_PERIOD, PERIOD_S, key=lambda _: "agent"))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> AgentLog:
        """Return the log that MSMONITOR_LOG_PATH asks for, or one that drops everything."""
        root = environ.get("MSMONITOR_LOG_PATH")
        return cls(Path(root) / DIRECTORY if root else None)

    def write(self, text: str) -> None:
        """Append one line, unless there were too many in the last seconds."""
        if self._file is not None:
            line = " / ".join(text.splitlines())
            self._file.handle(_Line(line))


class _Line(logging.LogRecord):
    """A record that knows no thread.

    The constructor of its base calls ``threading.current_thread()``, which makes a lasting entry
    for a thread that ``threading`` hasn't started, and a hub of greenlets under gevent.
    """

    def __init__(self, text: str) -> None:
        self.name, self.msg, self.args = "msmon.agent", text, None
        self.levelno, self.levelname = logging.INFO, "INFO"
        self.process = os.getpid()
        self.created = time.time()
        self.msecs = self.created * 1000 % 1000
        self.exc_info = self.exc_text = self.stack_info = None
