"""Names of exported files: ``msmonitor_<pid>_<YYYYMMDDhhmmssmmm>_<rank>.<suffix>``, local time.

msprof-analyze finds files by this name, and takes the rank from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from msmon.sessions import SessionInfo
from msmon.sinks.exports import create_file

_MS = 1_000_000
_FORMAT = "%Y%m%d%H%M%S%f"
_DIGITS = 17


def time_digits(time_ns: int) -> str:
    """Return the 17 digits of a wall clock time in ns."""
    seconds, rest_ns = divmod(time_ns, 1_000_000_000)
    return time.strftime("%Y%m%d%H%M%S", time.localtime(seconds)) + f"{rest_ns // _MS:03d}"


def create_session_file(
    session: SessionInfo, suffix: str, after: str = "", now_ns: Callable[[], int] = time.time_ns
) -> Path:
    """Create the next file of a session, empty, in its export directory.

    The name is the current millisecond's, or the first later one that is free and greater
    than ``after`` (17 digits; the clock may have been set back since). Raises SinkError or
    OSError.
    """
    directory = Path(session.settings.log_file)
    process = session.process
    digits = max(time_digits(now_ns()), _next_digits(after) if after else "")
    while True:
        name = f"msmonitor_{process.pid}_{digits}_{process.rank}.{suffix}"
        try:
            return create_file(directory, name)
        except FileExistsError:
            digits = _next_digits(digits)


def _next_digits(digits: str) -> str:
    """Return the millisecond after these 17 digits, as a calendar without a time zone has it.

    Not by ``strptime``: that imports a module when it is first called, which an output
    process with a user's rights may no longer be able to read.
    """
    year, rest = int(digits[:4]), digits[4:14]
    month, day, hour, minute, second = (int(rest[place : place + 2]) for place in range(0, 10, 2))
    moment = datetime(year, month, day, hour, minute, second, int(digits[14:]) * 1000)
    return (moment + timedelta(milliseconds=1)).strftime(_FORMAT)[:_DIGITS]
