"""Log lines about what peers do wrong, counted for ``status``."""

from __future__ import annotations

import logging


class LimitedLog:
    """Counts events, whether or not the rate filter of the daemon's log lets them be written."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self.count = 0
        """Events so far."""

    def warning(self, text: str, *arguments: object, owner: str = "") -> None:
        """Count an event and log it at level WARNING; ``owner``: whose lines it is one of."""
        self.count += 1
        self._logger.warning(text, *arguments, extra={"owner": owner} if owner else None)

    def exception(self, text: str, *arguments: object) -> None:
        """Count an event and log it at level ERROR with the exception being handled."""
        self.count += 1
        self._logger.exception(text, *arguments)
