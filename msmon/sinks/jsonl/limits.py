"""Limits of JSONL files from msMonitor's environment variables.

A value that can't be used is replaced by a stated rule, with one warning that names the given
and the used value.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msmon.settings.options import MONITOR_OPTION

_log = logging.getLogger(__name__)

DEFAULT_LINES: int = MONITOR_OPTION["jsonl_rotate_lines"].default
DEFAULT_FILES: int = MONITOR_OPTION["jsonl_rotate_files"].default
DEFAULT_BUFFER_LINES = 524_288
DEFAULT_DUMP_INTERVAL_MS = 30_000
MINIMUM_LINES, MAXIMUM_LINES = 100, 500_000
MINIMUM_FILES = 2
MINIMUM_BUFFER_LINES, MAXIMUM_BUFFER_LINES = 8192, 2_097_152
MINIMUM_DUMP_INTERVAL_MS = 1000


def usable_lines(lines: int) -> int:
    """Clamp the lines per file to 100…500,000."""
    return min(max(lines, MINIMUM_LINES), MAXIMUM_LINES)


def usable_files(files: int) -> int:
    """Return how many files are kept: 2 or more, or all (-1) where less was asked for."""
    return files if files >= MINIMUM_FILES else DEFAULT_FILES


def usable_buffer_lines(lines: int) -> int:
    """Clamp a power of two to 8,192…2,097,152. Any other number gives the default."""
    if lines <= 0 or lines & (lines - 1):
        return DEFAULT_BUFFER_LINES
    return min(max(lines, MINIMUM_BUFFER_LINES), MAXIMUM_BUFFER_LINES)


def usable_dump_interval_ms(interval_ms: int) -> int:
    """Return an interval of 1000 ms or more. Anything less gives the default."""
    return interval_ms if interval_ms >= MINIMUM_DUMP_INTERVAL_MS else DEFAULT_DUMP_INTERVAL_MS


@dataclass(frozen=True)
class Limit:
    """One limit: option of the sink, environment variable, default, and the rule of its values.

    ``usable`` returns the value that is used in place of a given one.
    """

    name: str
    variable: str
    default: int
    usable: Callable[[int], int]

    def from_environment(self, environ: Mapping[str, str]) -> int:
        """Return the value in force. One that can't be used as given gets a warning."""
        text = environ.get(self.variable, "").strip()
        if not text:
            return self.default
        try:
            used = self.usable(int(text))
            as_given = used == int(text)
        except ValueError:
            used, as_given = self.default, False
        if not as_given:
            _log.warning("%s=%s can't be used, using %d", self.variable, text, used)
        return used


LIMITS = (
    Limit("lines", "MSMONITOR_JSONL_ROTATE_LOG_LINES", DEFAULT_LINES, usable_lines),
    Limit("files", "MSMONITOR_JSONL_ROTATE_LOG_FILES", DEFAULT_FILES, usable_files),
    Limit(
        "buffer_lines",
        "MSMONITOR_JSONL_BUFFER_CAPACITY",
        DEFAULT_BUFFER_LINES,
        usable_buffer_lines,
    ),
    Limit(
        "dump_interval_ms",
        "MSMONITOR_JSONL_MAX_DUMP_INTERVAL",
        DEFAULT_DUMP_INTERVAL_MS,
        usable_dump_interval_ms,
    ),
)
"""``buffer_lines`` and ``dump_interval_ms`` have no effect. They are checked and shown, because
jobs written for msMonitor set them. msmon bounds queues in bytes, and lines are on disk within half
a second."""


def limits_in_force(environ: Mapping[str, str]) -> dict[str, int]:
    """Return name → value of every limit."""
    return {limit.name: limit.from_environment(environ) for limit in LIMITS}
