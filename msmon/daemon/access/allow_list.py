"""The public keys that a daemon takes connections from, one file ``clients/NAME.key`` each."""

from __future__ import annotations

import hashlib
import logging
import stat
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

from msmon.bus.keys import CLIENTS_DIRECTORY, load_public_key, read_key_file
from msmon.daemon.access.roles import KEY_ROLES, Role
from msmon.errors import BusError

_log = logging.getLogger(__name__)

DEFAULT_ROLE = Role.AGENT
"""Of a key file that names none."""


@dataclass(frozen=True)
class AllowedKey:
    """One entry of the allow-list. ``public`` is 40 characters of Z85 text."""

    name: str
    role: Role
    public: str


class AllowList:
    """The clients' keys in one directory. Call ``refresh`` now and then to keep it current.

    One thread at a time may call ``refresh``, which replaces whole objects. So any thread may
    read meanwhile.
    """

    def __init__(self, keys_directory: Path) -> None:
        self._directory = keys_directory / CLIENTS_DIRECTORY
        self._stamp: tuple[object, ...] = ()
        self._keys: dict[str, AllowedKey] = {}
        self._operators: frozenset[str] = frozenset()
        self.changes = 0
        """How often ``refresh`` found something new."""

    def get(self, public_key: str) -> AllowedKey | None:
        """Return the entry of a Z85 public key, or None when it isn't allowed."""
        return self._keys.get(public_key)

    def is_operator(self, name: str) -> bool:
        """Whether the key of this name has the role of an operator."""
        return name in self._operators

    def refresh(self) -> None:
        """Read the files again if any was added, changed or removed."""
        try:
            files = key_files(self._directory)
            stamp = tuple((path, path.stat().st_mtime_ns, path.stat().st_ino) for path in files)
        except OSError:
            files, stamp = [], ()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        allowed: dict[str, AllowedKey] = {}
        for path in files:
            try:
                entry = read_allowed_key(path)
            except BusError as error:
                _log.error("client key not allowed: %s; %s", error.message, error.next_step)
            else:
                allowed[entry.public] = entry
        self._keys = allowed
        self._operators = frozenset(
            key.name for key in allowed.values() if key.role is Role.OPERATOR
        )
        self.changes += 1


def key_files(directory: Path) -> list[Path]:
    """Return the key files in a directory by name; none where there is no directory."""
    return sorted(directory.glob("*.key"))


def read_allowed_key(path: Path) -> AllowedKey:
    """Read one file of the allow-list. Raises BusError naming what is wrong with it."""
    entry = offered_key(path)
    if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BusError(f"{path} can be changed by other users", f"run: chmod 644 {path}")
    return entry


def offered_key(path: Path) -> AllowedKey:
    """Read a public key file from anywhere. Raises BusError naming what is wrong with it."""
    public = load_public_key(path).decode()
    role = read_key_file(path).get("role", DEFAULT_ROLE.value)
    if role not in {known.value for known in KEY_ROLES}:
        names = ", ".join(known.value for known in KEY_ROLES)
        raise BusError(f"{path} names the role {role!r}", f"roles of keys are {names}")
    return AllowedKey(path.stem, Role(role), public)


def fingerprint(public_key: str) -> str:
    """Return a public key's fingerprint, short enough to compare by eye or on the telephone."""
    digest = hashlib.sha256(public_key.encode()).digest()
    return "SHA256:" + b64encode(digest).decode().rstrip("=")
