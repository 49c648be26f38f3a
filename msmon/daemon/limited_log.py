"""A logger that counts: for log lines about errors of peers, whose number ``status`` shows."""

from __future__ import annotations

import logging


class LimitedLog:
    """Logs events and counts all of them, also those that the rate filter doesn't write.

    Used on the broker's loop only.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self.count = 0
        """Number of events so far."""

    def warning(self, text: str, *arguments: object, owner: str = "") -> None:
        """Count an event and log it as a WARNING. It counts against the log lines of ``owner``."""
        self.count += 1
        self._logger.warning(text, *arguments, extra={"owner": owner} if owner else None)

    def exception(self, text: str, *arguments: object) -> None:
        """Count an event and log it as an ERROR with the traceback of the current exception."""
        self.count += 1
        self._logger.exception(text, *arguments)
