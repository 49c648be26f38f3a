"""The thread that matches the collectives of finished launches, one launch after the other.

Matching reads every collective of all ranks: three seconds for 8 ranks with 50,000 each. The
thread of the sink commits for all sessions, so it waits a moment only, which is enough for most
launches, and goes on with the others.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from msmon.errors import SinkError
from msmon.sinks.sqlite.pairing import set_apart_unpaired

PATIENCE_S = 0.5
"""How long a commit waits for what it has begun to match."""

_log = logging.getLogger(__name__)


class Matching:
    """What is being matched. The thread of the sink writes it; the files are the matcher's."""

    def __init__(self) -> None:
        self._matcher = ThreadPoolExecutor(1, thread_name_prefix="msmon-collectives")
        self._under_way: dict[Path, Future[None]] = {}
        self._is_new = False
        """Whether something was begun that nobody has waited for."""

    def begin(self, paths: Sequence[Path]) -> None:
        """Match the collectives in the files of one launch. Nobody else may write them now."""
        try:
            matched = self._matcher.submit(_match, list(paths))
        except RuntimeError:  # this user may start no further thread
            _match(paths)
            return
        self._under_way.update(dict.fromkeys(paths, matched))
        self._is_new = True

    def wait_a_moment(self) -> None:
        """Wait for what was begun since the last call, but no longer than ``PATIENCE_S``."""
        if self._is_new:
            self._is_new = False
            wait(self._under_way.values(), timeout=PATIENCE_S)
        self._under_way = {
            path: matched for path, matched in self._under_way.items() if not matched.done()
        }

    def wait_for(self, path: Path) -> None:
        """Wait until nobody writes a file here: its session has come back."""
        matched = self._under_way.pop(path, None)
        if matched is not None:
            wait([matched])

    def close(self) -> None:
        """Finish what was begun."""
        self._matcher.shutdown()


def _match(paths: Sequence[Path]) -> None:
    try:
        set_apart_unpaired(paths)
    except (SinkError, OSError, sqlite3.Error, ValueError, IndexError) as error:
        _log.warning("collectives in %s are left unmatched: %s", paths[0].parent, error)
