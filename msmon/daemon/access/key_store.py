"""Changing a directory of keys: own pairs, the allow-list, and pairs made for others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from msmon.bus.keys import (
    CLIENT_PUBLIC_FILE,
    CLIENT_SECRET_FILE,
    CLIENTS_DIRECTORY,
    SERVER_PUBLIC_FILE,
    SERVER_SECRET_FILE,
    SERVERS_DIRECTORY,
    KeyPair,
    key_file_text,
    load_key_pair,
    load_or_create_pair,
    load_or_create_server_keys,
    load_public_key,
    pair_text,
    read_key_file,
    write_new,
    write_replacing,
)
from msmon.daemon.access.allow_list import AllowedKey, key_files, offered_key, read_allowed_key
from msmon.daemon.access.roles import Role
from msmon.errors import BusError, UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class OwnKey:
    """A public key of this directory: ``use`` is "daemon", "client" or "daemon on HOST"."""

    use: str
    path: Path
    public: str


class KeyStore:
    """One directory of keys. Methods raise BusError for what can't be read or written."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._clients = directory / CLIENTS_DIRECTORY

    def own_keys(self) -> list[OwnKey]:
        """Return the public keys found here, without the allow-list."""
        known_daemons = key_files(self.directory / SERVERS_DIRECTORY)
        files = [
            ("daemon", self.directory / SERVER_PUBLIC_FILE),
            ("client", self.directory / CLIENT_PUBLIC_FILE),
            *((f"daemon on {path.stem}", path) for path in known_daemons),
        ]
        return [
            OwnKey(use, path, load_public_key(path).decode())
            for use, path in files
            if path.exists()
        ]

    def make_client_pair(self) -> Path:
        """Make this user's own pair unless there is one; return its public file."""
        load_or_create_pair(self.directory, CLIENT_SECRET_FILE, CLIENT_PUBLIC_FILE)
        return self.directory / CLIENT_PUBLIC_FILE

    def make_server_pair(self) -> Path:
        """Make the daemon's pair unless there is one; return its public file."""
        load_or_create_server_keys(self.directory)
        return self.directory / SERVER_PUBLIC_FILE

    def allowed(self) -> tuple[list[AllowedKey], list[BusError]]:
        """Return the allow-list by name, and what is wrong with files that count for nothing."""
        entries, problems = [], []
        for path in key_files(self._clients):
            try:
                entries.append(read_allowed_key(path))
            except BusError as error:
                problems.append(error)
        return entries, problems

    def allow(self, file: Path, role: Role | None, name: str) -> AllowedKey:
        """Put the public key in ``file`` on the allow-list, or change the role of one there.

        ``role`` None: the role in the file, else agent. Raises UsageError for a secret
        file, and for a name or key that is taken.
        """
        if "secret-key" in read_key_file(file):
            raise UsageError(
                f"{file} holds a secret, which should not leave the machine it was made on",
                f"allow the public file {CLIENT_PUBLIC_FILE} beside it",
            )
        offered = offered_key(file)
        entry = AllowedKey(_checked(name), role or offered.role, offered.public)
        self._require_free(entry)
        self._write(entry)
        return entry

    def make_client(self, name: str, role: Role, directory: Path) -> AllowedKey:
        """Make a pair for somebody else, allow it, and put what they need into ``directory``.

        That directory is then a key directory for the other machine: it holds the pair and
        this daemon's public key.
        """
        pair = KeyPair.generate()
        entry = AllowedKey(_checked(name), role, pair.public.decode())
        self._require_free(entry)
        server = load_or_create_server_keys(self.directory)
        try:
            directory.mkdir(mode=0o700)
            write_new(directory / CLIENT_SECRET_FILE, pair_text(pair), 0o600)
            write_new(directory / CLIENT_PUBLIC_FILE, _public_text(pair.public), 0o644)
            write_new(directory / SERVER_PUBLIC_FILE, _public_text(server.public), 0o644)
        except OSError as error:
            raise BusError(f"can't make {directory}: {error.strerror}") from None
        self._write(entry)
        return entry

    def revoke(self, name: str) -> AllowedKey | None:
        """Take a key off the allow-list. Returns its entry, None for a file that was broken.

        Raises UsageError when there is none of this name.
        """
        path = self._clients / f"{_checked(name)}.key"
        if not path.exists():
            names = ", ".join(known.stem for known in key_files(self._clients))
            raise UsageError(
                f"no key {name} is allowed", f"allowed: {names}" if names else "no key is allowed"
            )
        try:
            entry: AllowedKey | None = read_allowed_key(path)
        except BusError:
            entry = None
        try:
            path.unlink()
        except OSError as error:
            raise BusError(f"can't remove {path}: {error.strerror}") from None
        return entry

    def _rotate(self, secret_name: str, public_name: str) -> str:
        """Put a new pair in the place of one that exists; return the new public key."""
        secret = self.directory / secret_name
        load_key_pair(secret)
        pair = KeyPair.generate()
        try:
            write_replacing(secret, pair_text(pair), 0o600)
            write_replacing(self.directory / public_name, _public_text(pair.public), 0o644)
        except OSError as error:
            raise BusError(f"can't write keys in {self.directory}: {error.strerror}") from None
        return pair.public.decode()

    def rotate_server(self) -> str:
        """Replace the daemon's pair; return the new public key."""
        return self._rotate(SERVER_SECRET_FILE, SERVER_PUBLIC_FILE)

    def rotate_client(self) -> str:
        """Replace this user's own pair; return the new public key."""
        return self._rotate(CLIENT_SECRET_FILE, CLIENT_PUBLIC_FILE)

    def _require_free(self, entry: AllowedKey) -> None:
        for known in self.allowed()[0]:
            if (known.name == entry.name) != (known.public == entry.public):
                raise UsageError(
                    f"{'another' if known.name == entry.name else 'this'} key is already allowed "
                    f"as {known.name}",
                    f"run: msmon keys revoke {known.name}",
                )

    def _write(self, entry: AllowedKey) -> None:
        values = {"public-key": entry.public, "role": entry.role.value}
        try:
            self._clients.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_replacing(self._clients / f"{entry.name}.key", key_file_text(values), 0o644)
        except OSError as error:
            raise BusError(f"can't write to {self._clients}: {error.strerror}") from None


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} can't be the name of a key",
            "use letters, digits, dots, dashes and underscores, 64 at most",
        )
    return name


def _public_text(public: bytes) -> str:
    return key_file_text({"public-key": public.decode()})
