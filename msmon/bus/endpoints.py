"""Where a daemon listens, and the keys that a connection to it needs.

The local endpoint is a socket file in a runtime directory, with the daemon's public
key beside it. A client looks in its own user's directory, then in the system's. A place that
others could have prepared is passed over, with a warning (see :mod:`msmon.bus.trust`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from msmon.bus.keys import (
    CLIENT_SECRET_FILE,
    SERVER_PUBLIC_FILE,
    SERVERS_DIRECTORY,
    KeyPair,
    load_key_pair,
    load_public_key,
    public_key_in,
)
from msmon.bus.trust import TrustedDirectory, Untrusted, seen_below
from msmon.errors import BusError, DaemonUnreachable

DEFAULT_PORT = 1778
SOCKET_FILE = "daemon.sock"
PUBLIC_KEY_FILE = "daemon.pub"
SYSTEM_DIRECTORY = Path("/run/msmon")
MAX_SOCKET_PATH_BYTES = 107
"""``sun_path`` has 108 bytes with its final NUL (unix(7))."""


@dataclass(frozen=True)
class Endpoint:
    """What a client needs to connect. Both keys are None where security is off.

    ``daemon_uids``: on this machine, the users as which the daemon may run; empty over TCP.
    ``passed_over``: places that were not trusted, each with the reason, for a log or a person.
    """

    url: str
    server_public_key: bytes | None
    client_keys: KeyPair | None
    daemon_uids: frozenset[int] = frozenset()
    passed_over: tuple[str, ...] = ()


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
    changed its key. Raises DaemonUnreachable when there is no socket, Untrusted when
    MSMON_RUNTIME_DIR names a place that others may change, BusError when a path or key file
    is wrong.
    """
    insecure = insecure or environ.get("MSMON_INSECURE") == "1"
    directories = client_directories(environ)
    named = bool(environ.get("MSMON_RUNTIME_DIR"))
    passed_over: list[str] = []
    for directory in directories:
        try:
            found = _endpoint_in(directory, named or directory == SYSTEM_DIRECTORY, insecure)
        except Untrusted as error:
            if named:
                raise
            passed_over.append(error.message)
        else:
            if found is not None:
                return replace(found, passed_over=tuple(passed_over))
    tried = " and ".join(str(directory / SOCKET_FILE) for directory in directories)
    reasons = "".join(f"; {reason}" for reason in passed_over)
    raise DaemonUnreachable(
        f"no daemon runs on this machine: there is no socket {tried}{reasons}",
        "start msmon-daemon, or set MSMON_RUNTIME_DIR to the directory of its socket; "
        "inside a container or a private /tmp that directory must be mounted",
    )


def places_passed_over(
    environ: Mapping[str, str], uid: int | None = None, root: Path = Path("/")
) -> dict[Path, str]:
    """Return the directories that a client does not trust, each with the reason.

    ``uid`` is the client's user and ``root`` what its process has for "/"; by default those of
    this process. A place that is not there, or that we may not look into, is left out.
    """
    named = bool(environ.get("MSMON_RUNTIME_DIR"))
    found = {}
    for directory in client_directories(environ, uid):
        any_owner = named or directory == SYSTEM_DIRECTORY
        try:
            TrustedDirectory(directory, any_owner, uid, root).close()
        except Untrusted as error:
            found[directory] = error.message
        except (FileNotFoundError, PermissionError):
            continue
        except OSError as error:
            found[directory] = _why_not(directory, error, root)
    return found


def _endpoint_in(directory: Path, any_owner: bool, insecure: bool) -> Endpoint | None:
    """Return the endpoint in a directory, None where there is no socket.

    Raises Untrusted when others could have put it there.
    """
    path = socket_path(directory)
    try:
        with TrustedDirectory(directory, any_owner) as trusted:
            mode = trusted.mode_of(SOCKET_FILE)
            if stat.S_ISDIR(mode):
                raise BusError(
                    f"{path} is a directory where the daemon's socket should be",
                    f"remove it; into containers mount {directory}, not the socket itself",
                )
            if not stat.S_ISSOCK(mode):
                return None
            server_key = None if insecure else _public_key_in(trusted)
    except FileNotFoundError:
        return None
    except PermissionError:
        closed = f"{directory} is closed to uid {os.geteuid()}"
        if not any_owner:  # not even looked into: perhaps it is another user's
            raise Untrusted(closed) from None
        next_step = "start the daemon with --allow-users, or run as its user"
        raise DaemonUnreachable(closed, next_step) from None
    except OSError as error:
        raise Untrusted(_why_not(directory, error), "name the directory itself") from None
    own_keys = None if insecure else KeyPair.generate()
    return Endpoint(f"ipc://{path}", server_key, own_keys, trusted.daemon_uids)


def _public_key_in(trusted: TrustedDirectory) -> bytes:
    path = trusted.path / PUBLIC_KEY_FILE
    text = trusted.read_text(PUBLIC_KEY_FILE)
    if not text:
        raise BusError(
            f"the daemon's public key {path} is missing",
            "a daemon started with --insecure has none: restart it, or use --insecure "
            "(jobs: MSMON_INSECURE=1) here too",
        )
    return public_key_in(text, path)


def _why_not(directory: Path, error: OSError, root: Path = Path("/")) -> str:
    if seen_below(root, directory).is_symlink():
        return f"{directory} is a link: what it leads to is not trusted"
    return f"{directory} can't be opened as a directory: {error.strerror}"


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
