"""Log lines about what others do wrong: counted, but written at a limited rate."""

from __future__ import annotations

import logging
import time

_INTERVAL_S = 10.0
_LINES_PER_INTERVAL = 5


class LimitedLog:
    """A few lines per interval; the first of the next one tells how many were left out."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._interval_start_s = 0.0
        self._written = 0
        self._left_out = 0
        self.count = 0
        """Events so far, written or not."""

    def warning(self, text: str, *arguments: object) -> None:
        """Log at level WARNING, if there is room."""
        if self._has_room():
            self._logger.warning(text, *arguments)

    def exception(self, text: str, *arguments: object) -> None:
        """Log at level ERROR with the exception being handled, if there is room."""
        if self._has_room():
            self._logger.exception(text, *arguments)

    def _has_room(self) -> bool:
        self.count += 1
        now_s = time.monotonic()
        if now_s - self._interval_start_s > _INTERVAL_S:
            if self._left_out:
                self._logger.warning("%d more messages like the last were refused", self._left_out)
            self._interval_start_s, self._written, self._left_out = now_s, 0, 0
        if self._written >= _LINES_PER_INTERVAL:
            self._left_out += 1
            return False
        self._written += 1
        return True
