"""Checks of the machine: executable memory, namespaces, disk space."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from msmon.diagnosis.daemon import daemon_process
from msmon.diagnosis.finding import Finding, fail, ok, warn
from msmon.diagnosis.proc import NAMESPACES, own_namespace
from msmon.diagnosis.surroundings import Surroundings
from msmon.errors import NativeCodeUnavailable
from msmon.ffi.executable import map_code
from msmon.ffi.machine_code import CALLBACKS

LITTLE_ROOM_BYTES = 1 << 30
NO_ROOM_BYTES = 32 << 20

NAMESPACE_EFFECTS = {
    "pid": "its pids are not ours: choose processes by --rank",
    "mnt": "paths differ: mount the directory of the socket, and one for exports, into both",
    "net": "localhost is another one: use the local socket, or the node's address",
    "ipc": "/dev/shm may differ: ranks of one job need a common one for the frameworks",
}


def executable_memory(surroundings: Surroundings) -> Finding:
    """Report whether the native callbacks can be mapped with the rights read and execute."""
    check = "native callbacks"
    accepted = surroundings.environ.get("MSMON_PYTHON_CALLBACKS") == "1"
    code = CALLBACKS.get(os.uname().machine)
    problem, remedy = "", ""
    if code is None:
        problem = f"there is no native code for {os.uname().machine}"
        remedy = "monitor on x86_64 or aarch64"
    else:
        try:
            map_code(code)
        except NativeCodeUnavailable as error:
            problem, remedy = error.message, error.next_step
    if not problem and not accepted:
        return ok(check, f"code for {os.uname().machine} can be mapped read and execute")
    if accepted:
        return warn(
            check,
            "MSMON_PYTHON_CALLBACKS=1: a job can hang" + (f"; {problem}" if problem else ""),
            "unset it where native code can run",
        )
    return fail(check, problem, remedy)


def namespaces(surroundings: Surroundings) -> Finding:
    """Report which kernel namespaces of the daemon differ from those of this process."""
    check = "namespaces"
    if surroundings.remote:
        return ok(check, "not compared: the daemon is on another machine")
    daemon = daemon_process(surroundings)
    if daemon is None:
        hidden = " or in a pid namespace that can't be seen from here"
        return ok(
            check, f"nothing to compare with: no daemon{hidden if surroundings.reply else ''}"
        )
    kinds = [kind for kind in NAMESPACES if _differ(own_namespace(kind), daemon.namespace(kind))]
    if not kinds:
        return ok(check, f"the same as those of the daemon (pid {daemon.pid})")
    effects = [f"{kind}: {NAMESPACE_EFFECTS[kind]}" for kind in kinds]
    return warn(
        check,
        f"the daemon (pid {daemon.pid}) has other namespaces: {', '.join(kinds)}",
        "mount the directory of the socket, not the socket itself, into every container",
        *effects,
    )


def _differ(own: str, other: str) -> bool:
    return bool(own and other) and own != other


def disk(surroundings: Surroundings) -> Finding:
    """Report the free space where logs and exports are written, and in the current directory."""
    check = "disk"
    places = dict(_rooms(surroundings))
    details = [f"{path}: {free / 2**30:.1f} GiB free" for path, free in places.items()]
    fullest = min(places.values(), default=LITTLE_ROOM_BYTES)
    if fullest < NO_ROOM_BYTES:
        return fail(check, "no room left", "free some, or export to another --log-file", *details)
    if fullest < LITTLE_ROOM_BYTES:
        return warn(
            check, "less than 1 GiB left", "exports of a busy job fill that in minutes", *details
        )
    return ok(check, "; ".join(details))


def _rooms(surroundings: Surroundings) -> Iterator[tuple[Path, int]]:
    """Yield (directory, free bytes), one for each file system."""
    environ = surroundings.environ
    wanted = [Path.cwd()]
    if environ.get("MSMONITOR_LOG_PATH"):
        wanted.append(Path(environ["MSMONITOR_LOG_PATH"]))
    if surroundings.reply is not None and not surroundings.remote:
        wanted += [
            Path(file).parent for row in surroundings.reply.status_rows for file in row.files
        ]
    devices = set()
    for directory in wanted:
        try:
            device, free = directory.stat().st_dev, shutil.disk_usage(directory).free
        except OSError:
            continue
        if device not in devices:
            devices.add(device)
            yield directory, free
