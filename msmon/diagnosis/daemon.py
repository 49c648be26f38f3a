"""Checks of the daemon: whether it answers, its version, its key files, its TCP port."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil

import msmon
from msmon.bus.endpoints import (
    DEFAULT_PORT,
    client_directories,
    local_endpoint,
    places_passed_over,
)
from msmon.bus.greeting import offered_mechanism
from msmon.bus.keys import (
    CLIENT_SECRET_FILE,
    CLIENTS_DIRECTORY,
    SERVER_SECRET_FILE,
    keys_directory,
    load_key_pair,
    load_public_key,
    require_private,
)
from msmon.bus.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR
from msmon.bus.rows import DaemonRow
from msmon.diagnosis.finding import Finding, fail, ok, warn
from msmon.diagnosis.proc import SeenProcess, processes
from msmon.diagnosis.surroundings import Surroundings
from msmon.errors import BusError, MsmonError

_CONNECT_LIMIT_S = 0.5


def reachable(surroundings: Surroundings) -> Finding:
    """Report whether the daemon answers, as which process and user, and where it listens."""
    check = "daemon"
    answer = surroundings.answer
    if isinstance(answer, MsmonError):
        return fail(check, answer.message, answer.next_step, *_namespace_hint(surroundings))
    daemon = answer.daemon or DaemonRow("?")
    where = f"pid {daemon.pid} on {daemon.host}, uid {daemon.uid}"
    listens = ", ".join(daemon.listens)
    if daemon.insecure:
        return warn(
            check,
            f"answers without encryption or keys: {where}, {listens}",
            "restart it without --insecure",
        )
    return ok(check, f"answers: {where}, {listens}")


def _namespace_hint(surroundings: Surroundings) -> Iterator[str]:
    """Yield a line for each daemon process that is visible here. It may use another directory."""
    for process in surroundings.python_processes:
        if any("msmon-daemon" in word or "commands.daemon" in word for word in process.command):
            runtime = (process.environ or {}).get("MSMON_RUNTIME_DIR", "its default directory")
            yield f"a daemon runs as pid {process.pid}, uid {process.uid}, in {runtime}"


def places(surroundings: Surroundings) -> Finding:
    """Report the directories in which a daemon is looked for, and those that are not trusted."""
    check = "daemon's place"
    passed_over = places_passed_over(surroundings.environ)
    if not passed_over:
        looked_in = " and ".join(map(str, client_directories(surroundings.environ)))
        return ok(check, f"a daemon is looked for in {looked_in}")
    return warn(
        check,
        f"passed over, because others could have put something there: "
        f"{', '.join(map(str, passed_over))}",
        "see who made it, and remove it or correct its mode; or name a trusted directory in "
        "MSMON_RUNTIME_DIR",
        *passed_over.values(),
    )


def versions_agree(surroundings: Surroundings) -> Finding:
    """Report whether the daemon and the ranks have the same version of msmon as this process."""
    check = "versions agree"
    reply = surroundings.reply
    if reply is None:
        return warn(check, "not known: no daemon answers", "start msmon-daemon")
    ours = f"{msmon.__version__} (protocol {PROTOCOL_MAJOR}.{PROTOCOL_MINOR})"
    daemon = reply.daemon or DaemonRow("?")
    theirs = f"{daemon.version} (protocol {daemon.protocol})"
    others = [
        f"rank {row.rank} pid {row.pid}: msmon {row.version}"
        for row in reply.status_rows
        if row.version != msmon.__version__
    ]
    if ours == theirs and not others:
        return ok(check, f"msmon {ours} everywhere")
    return warn(
        check,
        f"here msmon {ours}, daemon {theirs}, {len(others)} processes with another",
        "install one version everywhere and restart the older side",
        *others,
    )


def keys(surroundings: Surroundings) -> Finding:
    """Report whether the key files are valid, and secret ones readable only by their owner."""
    check = "keys"
    directory = keys_directory(surroundings.environ)
    try:
        if not directory.is_dir():
            return ok(check, f"none in {directory}; local use needs none")
        require_private(directory)
        names = [path.name for path in _check_key_files(directory)]
    except BusError as error:
        return fail(check, error.message, error.next_step or "make or copy that file again")
    except OSError as error:
        return warn(
            check, f"{directory} can't be read: {error.strerror}", "run as its owner to check them"
        )
    return ok(check, f"{directory}: {', '.join(names) or 'empty'}")


def _check_key_files(directory: Path) -> Iterator[Path]:
    """Yield every valid key file. Raises BusError at the first invalid one."""
    for name in (SERVER_SECRET_FILE, CLIENT_SECRET_FILE):
        if (directory / name).exists():
            load_key_pair(directory / name)
            yield directory / name
    for path in sorted((directory / CLIENTS_DIRECTORY).glob("*.key")):
        load_public_key(path)
        yield path


def port(surroundings: Surroundings) -> Finding:
    """Report whether another program, for example dynolog, uses the daemon's TCP port."""
    check = f"port {DEFAULT_PORT}"
    try:
        socket.create_connection(("localhost", DEFAULT_PORT), _CONNECT_LIMIT_S).close()
    except OSError:
        return ok(check, "nobody listens there on this machine; local use does not need it")
    mechanism = offered_mechanism(f"tcp://localhost:{DEFAULT_PORT}")
    if mechanism:
        return ok(check, f"a ZeroMQ server listens there, secured with {mechanism}")
    holders = [p.pid for p in processes() if p.name.startswith("dynolog")]
    who = f"dynolog (pid {holders[0]})" if holders else "another program, probably dynolog,"
    return warn(
        check,
        f"{who} listens there",
        "stop it, or give msmon-daemon and commands another port: --listen HOST:PORT, --port",
    )


def daemon_process(surroundings: Surroundings) -> SeenProcess | None:
    """Return the process that listens on the local socket, or None if it isn't visible here.

    SO_PEERCRED (unix(7)) gives its pid as our own pid namespace numbers it.
    """
    try:
        endpoint = local_endpoint(surroundings.environ, insecure=True)  # no key is needed for this
    except BusError:
        return None
    pid, uid = _listener(endpoint.url.partition("://")[2])
    if pid > 0 and uid in endpoint.daemon_uids:
        with contextlib.suppress(psutil.NoSuchProcess):
            return SeenProcess(pid)
    return None


def _listener(path: str) -> tuple[int, int]:
    """Return pid and uid of the process that listens on a socket; pid 0 if none is visible."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_CONNECT_LIMIT_S)
        try:
            connection.connect(path)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError:
            return 0, -1
    pid, uid, _ = struct.unpack("iii", credentials)
    return int(pid), int(uid)
