"""Export directories that this daemon approved, for which sessions.

The daemon checks the directory of a start command when the command comes. The agent names the
directory again when it opens its session, perhaps to a daemon that was restarted meanwhile. An
agent's word alone must not decide where files are written, so the daemon remembers here what
it approved. An approval is first given to an owner, for the sessions that the command is about to
start. A session that uses it then has it until the session is forgotten.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from msmon.bus.keys import write_replacing
from msmon.bus.places import Unguarded
from msmon.daemon.access.owners import make_owner_directory, owner_directory

APPROVALS_FILE = "approvals.json"
UNUSED_FOR_S = 660.0
"""An approval that no session makes use of lapses: a start command waits at most 600 s."""

MAX_PER_OWNER = 512
_MAX_FILE_BYTES = 4 << 20

_log = logging.getLogger(__name__)


@dataclass
class _Approved:
    """The approvals of one owner, guarded by the lock of :class:`Approvals`.

    Both mappings are ordered by age and bounded: the oldest entry makes room.
    """

    unused: dict[str, float] = field(default_factory=dict)
    """Directory → until when (monotonic) a session may begin to use it."""
    sessions: dict[str, str] = field(default_factory=dict)
    """Session id → its directory."""

    def as_json(self, owner: str) -> str:
        """Return the text of the owner's file."""
        return json.dumps({"owner": owner, "unused": list(self.unused), "sessions": self.sessions})


class Approvals:
    """All approvals.

    The broker's loop and, for ``add`` alone, its worker threads write the state, under one lock. No
    method but ``add`` and ``close`` waits for a file: a thread of its own writes those changes.
    """

    def __init__(self, state_directory: Path) -> None:
        self._state_directory = state_directory
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="msmon-approvals")
        self._owners: dict[str, _Approved] = {}
        self._owner_of: dict[str, str] = {}
        """Session id → owner."""
        self._load()

    def add(self, owner: str, directory: str) -> None:
        """Approve a directory for sessions that this owner's processes are about to open.

        It is remembered over a restart when this returns: not for the broker's loop.
        """
        with self._lock:
            approved = self._owners.setdefault(owner, _Approved())
            approved.unused.pop(directory, None)
            approved.unused[directory] = time.monotonic() + UNUSED_FOR_S
            _bound(approved.unused)
        self._save(owner)

    def claim(self, owner: str, session_id: str, directory: str) -> bool:
        """Return whether a session of this owner may write there.

        If so, the session has the approval from now on, also after a restart of the daemon.
        """
        with self._lock:
            approved = self._owners.get(owner)
            if approved is None:
                return False
            if approved.sessions.get(session_id) == directory:
                return True
            if time.monotonic() > approved.unused.get(directory, 0.0):
                return False
            approved.sessions[session_id] = directory
            self._owner_of[session_id] = owner
            _bound(approved.sessions)
        self._writer.submit(self._save, owner)
        return True

    def end(self, session_id: str) -> None:
        """Forget the approval of a session of which nothing comes again."""
        with self._lock:
            owner = self._owner_of.pop(session_id, None)
            if owner is None:
                return
            self._owners[owner].sessions.pop(session_id, None)
        self._writer.submit(self._save, owner)

    def close(self) -> None:
        """Write what is not written yet. Blocks."""
        self._writer.shutdown()

    def _save(self, owner: str) -> None:
        directory = owner_directory(self._state_directory, owner)
        with self._saving:
            with self._lock:
                approved = self._owners[owner]
                now_s = time.monotonic()
                for lapsed in [item for item, at_s in approved.unused.items() if at_s < now_s]:
                    del approved.unused[lapsed]
                text = approved.as_json(owner)
            try:
                make_owner_directory(directory)
                write_replacing(directory / APPROVALS_FILE, text, 0o600)
            except (OSError, Unguarded) as error:
                _log.error("%s can't be written: %s", directory / APPROVALS_FILE, error)

    def _load(self) -> None:
        for path in self._state_directory.glob(f"owners/*/{APPROVALS_FILE}"):
            try:
                owner, approved = _read(path)
            except (OSError, ValueError, TypeError, KeyError) as error:
                _log.error("%s can't be read, so nothing in it counts: %s", path, error)
                continue
            self._owners[owner] = approved
            self._owner_of.update(dict.fromkeys(approved.sessions, owner))


def _read(path: Path) -> tuple[str, _Approved]:
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError("it is too large")
    fields = json.loads(path.read_text(encoding="utf-8"))
    until_s = time.monotonic() + UNUSED_FOR_S
    unused = dict.fromkeys(map(str, fields["unused"]), until_s)
    sessions = {str(key): str(directory) for key, directory in fields["sessions"].items()}
    return str(fields["owner"]), _Approved(unused, sessions)


def _bound(entries: dict[str, float] | dict[str, str]) -> None:
    while len(entries) > MAX_PER_OWNER:
        del entries[next(iter(entries))]
