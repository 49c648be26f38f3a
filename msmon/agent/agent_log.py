"""The agent's log file: bounded in size and rate, never the job's own streams.

Only where MSMONITOR_LOG_PATH is set; the file is made at the first line. That directory may
be shared with other users, so nothing found there is trusted: see :class:`BoundedFile`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from msmon.logs import BoundedFile, OneLineFormatter, RateFilter

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
            self._file.handle(
                logging.LogRecord("msmon.agent", logging.INFO, "", 0, line, None, None)
            )
