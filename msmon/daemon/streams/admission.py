"""Whether a process may open one more session, and with which of its settings."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable

from msmon.daemon.access.approvals import Approvals
from msmon.daemon.access.shares import Resource, Shares
from msmon.daemon.process import Process
from msmon.daemon.streams.stream import Stream, owner_of, writes_anywhere
from msmon.errors import CommandRefused
from msmon.sessions import MonitorSettings

MAX_OPEN_SESSIONS_PER_PROCESS = 8

_log = logging.getLogger(__name__)


def require_room(process: Process, streams: Iterable[Stream]) -> None:
    """Raise CommandRefused where a process has too many open ones among its streams."""
    if sum(not item.closed for item in streams) >= MAX_OPEN_SESSIONS_PER_PROCESS:
        raise CommandRefused(f"{process.label} has too many open sessions")


def take_share(
    owner: str, shares: Shares, streams: Iterable[Stream], forget: Callable[[Stream], None]
) -> None:
    """Count a session against its owner; one that ended longest ago is forgotten to make room.

    Raises ShareUsedUp where the owner has too many that are open.
    """
    if shares.try_take(owner, Resource.SESSIONS):
        return
    ended = [
        stream
        for stream in streams
        if stream.closed and not stream.refused and stream.process.peer.owner == owner
    ]
    if ended:
        forget(min(ended, key=lambda stream: stream.closed_s))
    shares.take(owner, Resource.SESSIONS)


def approved_settings(
    process: Process, session_id: str, settings: MonitorSettings, approvals: Approvals
) -> tuple[MonitorSettings, str]:
    """Return the settings of a session, without an export that was not approved, and why.

    The path was checked when the command came; an agent's word alone doesn't count. Not even an
    operator's, if it comes with a TCP key: the daemon would write with its own rights wherever
    the holder of that key likes.
    """
    if not settings.log_file or writes_anywhere(process.peer):
        return settings, ""
    owner = owner_of(process.peer).name
    if approvals.claim(owner, session_id, settings.log_file):
        return settings, ""
    problem = f"export to {settings.log_file} was not approved by this daemon"
    _log.warning("%s: %s", process.label, problem, extra={"owner": process.peer.owner})
    return dataclasses.replace(settings, log_file=""), problem
