"""Database files that were copied without their write-ahead log.

While a session is written, what came last is in ``NAME.db-wal``. Who copies ``NAME.db`` alone
has a file that opens without an error and lacks it. Such a file is known by two things: its
header says that there is a log, and there is none beside it. A session that ended, or whose
daemon stopped, leaves a file whose header says that there is no log.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection
from pathlib import Path

from msmon.sinks.regular_files import open_regular

LOG_ENDING = "-wal"
LOOKED_AT = 1000
"""Files of a directory that are looked at, the newest names first."""
NAMED = 5
"""Files that a warning names; of more it says how many."""

_HEADER_BYTES = 20
_MAGIC = b"SQLite format 3\0"
_LOGGED = b"\x02\x02"
"""The format versions for writing and reading (bytes 18 and 19) of a file with a log."""

_log = logging.getLogger(__name__)


def lacks_log(path: Path, *, follow: bool = False) -> bool:
    """Whether a database file was written with a log that is not beside it.

    ``follow``: as for ``open_regular``. Raises OSError. Not for a file that this process has open
    in SQLite: closing a second descriptor releases the locks of the first (fcntl(2)).
    """
    with open(open_regular(path, os.O_RDONLY, follow=follow), "rb") as file:
        header = file.read(_HEADER_BYTES)
    if not header.startswith(_MAGIC) or header[18:] != _LOGGED:
        return False
    return not os.path.lexists(f"{path}{LOG_ENDING}")


def warn_of_copies(directory: Path, ours: Collection[Path]) -> None:
    """Name the files of a directory that lack their log; ``ours`` are not looked at."""
    names = sorted((path.name for path in directory.glob("msmonitor_*.db")), reverse=True)
    lacking = []
    for name in names[:LOOKED_AT]:
        with contextlib.suppress(OSError):
            if directory / name not in ours and lacks_log(directory / name):
                lacking.append(name)
    if lacking:
        more = f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
        _log.warning(
            "%s: %s%s lack what was written last, for the write-ahead log NAME.db%s is missing; "
            "copy both files of a session that still runs",
            directory,
            ", ".join(lacking[:NAMED]),
            more,
            LOG_ENDING,
        )
