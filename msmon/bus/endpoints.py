"""Where a daemon listens, and the keys that a connection to it needs.

The local endpoint is a socket file in a runtime directory, with the daemon's public
key beside it. A client looks in its own user's directory, then in the system's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msmon.bus.keys import (
    CLIENT_SECRET_FILE,
    SERVER_PUBLIC_FILE,
    SERVERS_DIRECTORY,
    KeyPair,
    load_key_pair,
    load_public_key,
)
from msmon.errors import BusError, DaemonUnreachable

DEFAULT_PORT = 1778
SOCKET_FILE = "daemon.sock"
PUBLIC_KEY_FILE = "daemon.pub"
SYSTEM_DIRECTORY = Path("/run/msmon")
MAX_SOCKET_PATH_BYTES = 107
"""``sun_path`` has 108 bytes with its final NUL (unix(7))."""


@dataclass(frozen=True)
class Endpoint:
    """What a client needs to connect. Both keys are None where security is off."""

    url: str
    server_public_key: bytes | None
    client_keys: KeyPair | None


def runtime_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory where a daemon of this user puts its socket."""
    return _own_directory(environ, os.geteuid())


def client_directories(environ: Mapping[str, str], uid: int | None = None) -> list[Path]:
    """Return the directories where a client of a user looks for a daemon, in order."""
    own = _own_directory(environ, os.geteuid() if uid is None else uid)
    if environ.get("MSMON_RUNTIME_DIR") or own == SYSTEM_DIRECTORY:
        return [own]
    return [own, SYSTEM_DIRECTORY]


def _own_directory(environ: Mapping[str, str], uid: int) -> Path:
    if environ.get("MSMON_RUNTIME_DIR"):
        return Path(environ["MSMON_RUNTIME_DIR"]).absolute()
    if uid == 0:
        return SYSTEM_DIRECTORY
    if environ.get("XDG_RUNTIME_DIR"):
        return Path(environ["XDG_RUNTIME_DIR"]) / "msmon"
    users = Path(f"/run/user/{uid}")
    return users / "msmon" if users.is_dir() else Path(f"/tmp/msmon-{uid}")


def socket_path(directory: Path) -> Path:
    """Return the path of the socket. Raises BusError when it is too long for a socket."""
    path = directory / SOCKET_FILE
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise BusError(
            f"the socket path {path} has {length} bytes, {MAX_SOCKET_PATH_BYTES} are possible",
            "set MSMON_RUNTIME_DIR to a shorter directory, for the daemon and its clients",
        )
    return path


def local_endpoint(environ: Mapping[str, str], insecure: bool = False) -> Endpoint:
    """Return the endpoint of the daemon on this machine, as it stands now.

    ``insecure``, or MSMON_INSECURE=1 in the environment (for jobs), expects a daemon
    that was started with --insecure.
    Call it again before each new connection: a restarted daemon may have moved or
    changed its key. Raises DaemonUnreachable when there is no socket, BusError when
    a path or key file is wrong.
    """
    insecure = insecure or environ.get("MSMON_INSECURE") == "1"
    directories = client_directories(environ)
    for directory in directories:
        path = socket_path(directory)
        if _is_socket(path):
            if not environ.get("MSMON_RUNTIME_DIR") and directory != SYSTEM_DIRECTORY:
                _require_trusted(directory)  # in /run only root can make directories
            return _endpoint_in(directory, path, insecure)
    tried = " and ".join(str(directory / SOCKET_FILE) for directory in directories)
    raise DaemonUnreachable(
        f"no daemon runs on this machine: there is no socket {tried}",
        "start msmon-daemon, or set MSMON_RUNTIME_DIR to the directory of its socket; "
        "inside a container or a private /tmp that directory must be mounted",
    )


def _is_socket(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        raise DaemonUnreachable(
            f"{path.parent} is closed to uid {os.geteuid()}",
            "start the daemon with --allow-users, or run as its user",
        ) from None
    if stat.S_ISDIR(mode):
        raise BusError(
            f"{path} is a directory where the daemon's socket should be",
            f"remove it; into containers mount {path.parent}, not the socket itself",
        )
    return stat.S_ISSOCK(mode)


def _require_trusted(directory: Path) -> None:
    owner = directory.stat().st_uid
    if owner not in (0, os.geteuid()):
        raise BusError(
            f"{directory} belongs to uid {owner}: the daemon in it is not trusted",
            f"set MSMON_RUNTIME_DIR={directory} to use it all the same",
        )


def _endpoint_in(directory: Path, path: Path, insecure: bool) -> Endpoint:
    if insecure:
        return Endpoint(f"ipc://{path}", None, None)
    public = directory / PUBLIC_KEY_FILE
    if not public.exists():
        raise BusError(
            f"the daemon's public key {public} is missing",
            "a daemon started with --insecure has none: restart it, or use --insecure "
            "(jobs: MSMON_INSECURE=1) here too",
        )
    return Endpoint(f"ipc://{path}", load_public_key(public), KeyPair.generate())


def remote_endpoint(host: str, port: int, keys_directory: Path, insecure: bool = False) -> Endpoint:
    """Return the endpoint of a daemon on another host.

    The daemon's public key is read from ``servers/HOST.key`` or ``server.key``, our
    own pair from ``client.key_secret``. Raises BusError when a key file is missing,
    empty, cut short or open to others.
    """
    url = f"tcp://{bracketed(host)}:{port}"
    if insecure:
        return Endpoint(url, None, None)
    own = keys_directory / SERVERS_DIRECTORY / f"{host}.key"
    server = own if own.exists() else keys_directory / SERVER_PUBLIC_FILE
    secret = keys_directory / CLIENT_SECRET_FILE
    for path in (secret, server):
        if not path.exists():
            raise BusError(
                f"the key file {path} is missing",
                "where the daemon runs, `msmon keys new NAME --role operator` makes a directory "
                "with all that is needed: name it with --keys",
            )
    return Endpoint(url, load_public_key(server), load_key_pair(secret))


def bracketed(host: str) -> str:
    """Return a host as it stands in a URL: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
