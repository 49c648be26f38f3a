"""CURVE key pairs and the files that hold them.

A key file has ``name = "value"`` lines, as CZMQ's certificates do: ``public-key``,
in secret files also ``secret-key``, in allowed clients' files also ``role``. Secrets
are created readable by their owner only, and refused when others may read them.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from msmon.errors import BusError

SERVER_PUBLIC_FILE = "server.key"
SERVER_SECRET_FILE = "server.key_secret"
CLIENT_PUBLIC_FILE = "client.key"
CLIENT_SECRET_FILE = "client.key_secret"
CLIENTS_DIRECTORY = "clients"
"""The daemon's allow-list."""
SERVERS_DIRECTORY = "servers"
"""A client's list of daemons: ``HOST.key`` each."""

_KEY_LENGTH = 40
_LINE = re.compile(r'\s*([a-z-]+)\s*=\s*"([^"]*)"\s*')
_Z85 = re.compile(rb"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair, each half as 40 bytes of Z85 text. The secret is never shown."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> KeyPair:
        """Make a new pair."""
        return cls(*zmq.curve_keypair())


def keys_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of this user's keys: MSMON_KEYS_DIR or the default."""
    if environ.get("MSMON_KEYS_DIR"):
        return Path(environ["MSMON_KEYS_DIR"])
    if os.geteuid() == 0:
        return Path("/etc/msmon/keys")
    return Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "msmon" / "keys"


def load_or_create_server_keys(directory: Path) -> KeyPair:
    """Return the daemon's key pair, made at its first start. Raises as `load_or_create_pair`."""
    return load_or_create_pair(directory, SERVER_SECRET_FILE, SERVER_PUBLIC_FILE)


def load_or_create_pair(directory: Path, secret_name: str, public_name: str) -> KeyPair:
    """Return the key pair in two files of ``directory``, made where it is missing.

    Raises BusError when the directory or the secret is open to others, or a file
    can't be read or written.
    """
    secret, public = directory / secret_name, directory / public_name
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_private(directory)
        if not secret.exists():
            _create_secret(secret)
        pair = load_key_pair(secret)
        if not public.exists():
            write_replacing(public, key_file_text({"public-key": pair.public.decode()}), 0o644)
    except OSError as error:
        raise BusError(f"can't keep keys in {directory}: {error.strerror}") from None
    return pair


def pair_text(pair: KeyPair) -> str:
    """Return the content of a secret key file."""
    return key_file_text({"public-key": pair.public.decode(), "secret-key": pair.secret.decode()})


def _create_secret(path: Path) -> None:
    """Make a key pair in a file that appears complete or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    write_new(beside, pair_text(KeyPair.generate()), 0o600)
    with contextlib.suppress(FileExistsError):  # made by another daemon at the same moment
        os.link(beside, path)
    beside.unlink()


def load_key_pair(path: Path) -> KeyPair:
    """Read a secret key file. Raises BusError naming what is wrong with it."""
    if path.exists():
        require_private(path)
    return load_credential(path)


def load_credential(path: Path) -> KeyPair:
    """Read a secret key file that systemd hands to this service only. Raises BusError.

    Its mode says nothing: systemd opens it with an ACL, which shows as rights of the group.
    """
    values = read_key_file(path)
    return KeyPair(_key(values, "public-key", path), _key(values, "secret-key", path))


def load_public_key(path: Path) -> bytes:
    """Read the public key in a key file. Raises BusError naming what is wrong with it."""
    return _key(read_key_file(path), "public-key", path)


def read_key_file(path: Path) -> dict[str, str]:
    """Return the values of a key file. Raises BusError when it is missing or empty."""
    try:
        text = path.read_text("ascii")
    except FileNotFoundError:
        raise BusError(f"the key file {path} is missing") from None
    except OSError as error:
        raise BusError(f"the key file {path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BusError(f"{path} is not a key file") from None
    return _values_in(text, path)


def public_key_in(text: str, path: Path) -> bytes:
    """Return the public key in the text of the key file ``path``. Raises BusError."""
    return _key(_values_in(text, path), "public-key", path)


def _values_in(text: str, path: Path) -> dict[str, str]:
    if not text.strip():
        raise BusError(f"the key file {path} is empty")
    matches = (_LINE.fullmatch(line) for line in text.splitlines())
    return {match[1]: match[2] for match in matches if match}


def _key(values: Mapping[str, str], name: str, path: Path) -> bytes:
    if name not in values:
        raise BusError(f"the key file {path} has no {name}")
    key = values[name].encode("ascii", "replace")
    if len(key) != _KEY_LENGTH:
        raise BusError(
            f"the {name} in {path} has {len(key)} characters instead of {_KEY_LENGTH}",
            "copy the whole file again",
        )
    if not _Z85.fullmatch(key):
        raise BusError(f"the {name} in {path} has characters that no key has")
    return key


def key_file_text(values: Mapping[str, str]) -> str:
    """Return the content of a key file."""
    return "".join(f'{name} = "{value}"\n' for name, value in values.items())


def require_private(path: Path) -> None:
    """Raise BusError, with the chmod to run, when others may read or write ``path``."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        raise BusError(f"{path} belongs to uid {status.st_uid}, not to uid {os.geteuid()}")
    if status.st_mode & 0o077:
        right = "700" if stat.S_ISDIR(status.st_mode) else "600"
        raise BusError(
            f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):03o})",
            f"run: chmod {right} {path}",
        )


def write_new(path: Path, text: str, mode: int) -> None:
    """Create a file that must not exist yet, with its final mode from the start."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, mode)  # whatever the umask took away
        file.write(text)


def write_replacing(path: Path, text: str, mode: int) -> None:
    """Put a complete file in the place of ``path``."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    write_new(beside, text, mode)
    beside.replace(path)
