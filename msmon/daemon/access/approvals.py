"""Export directories that this daemon approved, for whose processes.

A start command is checked when it comes; the agent then repeats the directory when it
opens the session, also to a daemon that was restarted meanwhile. Approvals are kept
in a file, so that an agent's word alone never decides where the daemon writes.
"""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

from msmon.bus.keys import write_replacing

_log = logging.getLogger(__name__)

APPROVALS_FILE = "approved_exports.json"
_MAX_APPROVALS = 1000


class Approvals:
    """Pairs of (credential of the process's owner, directory)."""

    def __init__(self, keys_directory: Path) -> None:
        self._path = keys_directory / APPROVALS_FILE
        self._lock = threading.Lock()
        self._pairs: dict[tuple[str, str], None] = dict.fromkeys(self._read())

    def _read(self) -> list[tuple[str, str]]:
        try:
            return [(str(who), str(path)) for who, path in json.loads(self._path.read_text())]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as error:
            _log.error("%s can't be read, so nothing in it counts: %s", self._path, error)
            return []

    def holds(self, credential: str, directory: str) -> bool:
        """Whether processes of this owner may have their data written there."""
        return (credential, directory) in self._pairs

    def add(self, credential: str, directory: str) -> None:
        """Approve, and remember over a restart. Writes a file: not for the broker's loop."""
        with self._lock:
            if self.holds(credential, directory):
                return
            self._pairs[credential, directory] = None
            while len(self._pairs) > _MAX_APPROVALS:
                del self._pairs[next(iter(self._pairs))]
            try:
                write_replacing(self._path, json.dumps(list(self._pairs)), 0o600)
            except OSError as error:
                _log.error("%s can't be written: %s", self._path, error)
