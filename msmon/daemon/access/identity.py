"""Who a process is: what the kernel says of its connection and of its pid, not what it claims.

A hello names a host, a pid, a start time and a container. On the local socket the kernel names
the process that connected, and /proc tells the rest of it. A hello that contradicts is refused,
so nobody can register the processes of another user. The host name is not compared but set: a
process in the daemon's own UTS namespace has the daemon's host name, whatever it claims.

Some claims can't be checked, and stay as they are. Example: the daemon runs in a container of its
own and sees no /proc entry of the pid. Such a process can only be mistaken for another of the
same owner, because the owner is part of a process's identity (``Registry``).

The kernel's word is about the moment of connecting. What follows from that:

* Covered: a process passes its connection on to another one (fork, SCM_RIGHTS) and ends. The
  socket and its uid stay the same, so the other one speaks with the rights of that uid. Who
  passes a connection on gives those rights away, as with any open file.
* Covered: the pid ends and another user's process gets its number. A hello over the old
  connection can then describe that process, but it is registered under the uid of the connection.
  It never meets the real one, and may command and write only as that uid.
* Not covered: the same between two processes of one user. One user's processes are not
  protected from each other.

Operators are believed. Root and the daemon's own user can do everything anyway, and their tools
may register processes in the place of others, as simulations do.
"""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from pathlib import Path

from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.errors import CommandRefused
from msmon.sessions import ProcessInfo

PROC = Path("/proc")
_CONTAINER_ID = re.compile(r"\b[0-9a-f]{64}\b")
_MAX_ANCESTORS = 4
"""A carrier is a helper that the rank has started, at most with a few shells in between."""


@dataclass(frozen=True)
class SeenByKernel:
    """A local process as /proc shows it here. Unknown: 0, and "" for texts."""

    own_pid: int
    """Its pid as it sees it itself, in its innermost pid namespace (proc(5), NSpid)."""
    parent: int
    """Pid of its parent, in the daemon's namespace."""
    start_time: int
    """In clock ticks since boot, as a reader in the daemon's time namespace sees it."""
    container: str
    """The 64 digits that container runtimes put into the cgroup's name."""
    same_clock: bool
    """Whether it reads start times as the daemon does: both are in one time namespace."""
    is_over: bool
    """Whether it has ended, and only its parent has not noticed yet (a zombie)."""
    same_host: bool
    """Whether it surely has the daemon's host name: both are in one UTS namespace."""


def seen_by_kernel(pid: int, proc: Path = PROC) -> SeenByKernel | None:
    """Return what /proc says of a pid of the daemon's namespace; None where it can't be seen."""
    status = _read(proc / str(pid) / "status")
    stat = _read(proc / str(pid) / "stat").rpartition(")")[2].split()
    if not status or len(stat) <= 19:
        return None
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    numbers = fields.get("NSpid", str(pid)).split()
    container = _CONTAINER_ID.search(_read(proc / str(pid) / "cgroup"))
    own_hosts = {_link(proc / "self" / "ns" / "uts")} - {""}
    return SeenByKernel(
        own_pid=int(numbers[-1]),
        parent=int(fields.get("PPid", "0")),
        start_time=int(stat[19]),
        container=container[0] if container else "",
        same_clock=_link(proc / str(pid) / "ns" / "time") == _link(proc / "self" / "ns" / "time"),
        is_over=stat[0] in "ZX",
        same_host=_link(proc / str(pid) / "ns" / "uts") in own_hosts,
    )


def confirmed(
    claim: ProcessInfo, peer: Peer, carrier: bool, daemon_host: str, proc: Path = PROC
) -> ProcessInfo:
    """Return who the process is for which a peer says hello.

    ``carrier``: the peer is a helper process, and the claim is about the rank that started it.
    Raises CommandRefused when the kernel says otherwise.
    """
    if peer.uid < 0:  # nobody vouches for a process of another machine: it has no uid here
        return dataclasses.replace(claim, uid=-1)
    claim = dataclasses.replace(claim, uid=peer.uid)
    if peer.role is Role.OPERATOR:
        return claim
    seen = _rank_of_carrier(claim, peer, proc) if carrier else seen_by_kernel(peer.pid, proc)
    if seen is None:
        return claim
    _require_equal("pid", claim.pid, seen.own_pid, peer)
    if seen.same_clock and claim.start_time:
        _require_equal("start time", claim.start_time, seen.start_time, peer)
    if seen.container and _CONTAINER_ID.fullmatch(claim.container):
        _require_equal("container", claim.container, seen.container, peer)
    return dataclasses.replace(claim, host=daemon_host) if seen.same_host else claim


def still_runs(info: ProcessInfo, peer: Peer, proc: Path = PROC) -> bool | None:
    """Return whether the process runs that a local peer has registered; None: it can't be seen.

    A process of another pid or start time is another one, so the registered one has ended. This
    also holds for what tools of operators register, as simulations do.
    """
    if peer.pid <= 0:
        return None
    seen = seen_by_kernel(peer.pid, proc)
    if seen is None:
        hidden = proc is PROC and is_in_use(peer.pid)  # by the option hidepid of /proc
        return None if hidden else False
    began_then = info.start_time in (0, seen.start_time) or not seen.same_clock
    return seen.own_pid == info.pid and began_then and not seen.is_over


def is_in_use(pid: int) -> bool:
    """Whether a pid is in use; works without /proc, and where it is restricted."""
    if pid < 1:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _rank_of_carrier(claim: ProcessInfo, peer: Peer, proc: Path) -> SeenByKernel | None:
    """Return the ancestor of a carrier that has the claimed pid.

    None where its ancestors can't be seen. Raises CommandRefused where none of them has it.
    """
    pid = peer.pid
    for _ in range(_MAX_ANCESTORS):
        seen = seen_by_kernel(pid, proc)
        if seen is None:
            return None
        if pid != peer.pid and seen.own_pid == claim.pid:
            return seen if _uid(pid, proc) == peer.uid else None
        pid = seen.parent
    raise CommandRefused(f"no process {claim.pid} has started this helper of {peer.owner}")


def _require_equal(what: str, claimed: object, seen: object, peer: Peer) -> None:
    if claimed != seen:
        raise CommandRefused(
            f"this connection's process has the {what} {seen}, not {claimed}",
            f"{peer.owner} can register only its own processes",
        )


def _uid(pid: int, proc: Path) -> int:
    try:
        return (proc / str(pid)).stat().st_uid
    except OSError:
        return -1


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:  # The kernel has no such namespaces, or the daemon may not read the link.
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
