"""What the daemon knows of one session's stream: whose it is, what it is called, how far it is."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from msmon.bounds import added
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.owners import Owner
from msmon.daemon.access.roles import Role
from msmon.daemon.outputs.delivery import WindowDelivery
from msmon.daemon.outputs.output_session import OpenAnswer
from msmon.daemon.process import Process
from msmon.daemon.recent.shelf import KeptSession
from msmon.errors import CommandRefused
from msmon.sessions import Counts, Drops, DropStage, SessionEnd, SessionInfo, merged_drops

MAX_ID_CHARACTERS = 48
"""An agent's id for a session: 32 hexadecimal digits. With the owner it stays below 64."""


@dataclass
class Stream:
    """One session of one process. Only ``Streams`` changes it.

    Times are on the monotonic clock.
    """

    session: SessionInfo
    """Under the daemon's id for it (:func:`daemon_id`)."""
    process: Process
    agent_id: str
    """What its agent calls it."""
    last_seq: int = 1
    safe_seq: int = 0
    opened: OpenAnswer | None = None
    """Files that it writes, or why its export can't be opened; None: not known yet."""
    problem: str = ""
    closed: bool = False
    lost: bool = False
    """Closed by the daemon, because the process vanished."""
    closed_s: float = 0.0
    refused: bool = False
    """Nothing of it is taken; ``problem`` says why."""
    end: SessionEnd | None = None
    """How it ended, with its final counts; None while it is open."""
    kept: KeptSession | None = None
    """What is kept of its windows for readers; None for a session that is refused."""
    drops: Drops = field(default_factory=dict)
    """What the daemon lost of it before it came to the outputs."""
    arrived: dict[str, int] = field(default_factory=dict)
    """Kind → records that have come."""
    loss_told: bool = False
    """A stop has told that the process vanished with this session."""

    so_far: WindowDelivery | None = None
    """What its agent has told of the window that is open."""
    reported_window: int = -1
    """Index of the newest window that has come as a whole."""

    def lose(self, drops: Drops) -> None:
        """Count what the daemon has lost of it."""
        self.drops = merged_drops(self.drops, drops)

    def arrives(self, kind: str, count: int) -> None:
        """Count records that have come."""
        self.arrived[kind] = added(self.arrived.get(kind, 0), count)

    def counts_without_agent(self, told: Counts) -> Counts:
        """Return the counts of a session whose process vanished; ``told``: by its last heartbeat.

        They are at least what has come. What it had not sent yet is lost, and nobody counted it:
        the records of an export, and what the last window held beyond what was told of it.
        """
        lost: Drops = {DropStage.WINDOWS: None}
        if self.session.settings.ship_records:
            lost = {DropStage.UPLINK: None, **lost}
        return dataclasses.replace(
            told,
            received=_at_least(told.received, self.arrived),
            kept=_at_least(told.kept, self.arrived),
            drops=merged_drops(told.drops, lost),
        )

    @property
    def owner(self) -> Owner:
        """Whose data it is."""
        return owner_of(self.process.peer)

    @property
    def is_written(self) -> bool:
        """Whether it has ended and its outputs hold all of it."""
        return self.closed and self.safe_seq >= self.last_seq

    @property
    def final_counts(self) -> Counts | None:
        """What its agent counted when it ended; None where that is not known."""
        return self.end.counts if self.end is not None and self.end.counts != Counts() else None

    def continue_with(self, process: Process) -> None:
        """Go on with a process that says it is the one of this stream.

        After a long absence the same process is a new object. Raises CommandRefused when it is
        another process, or has other credentials.
        """
        former = self.process
        known = (former.info.key, former.peer.credential)
        if former is not process and (process.info.key, process.peer.credential) != known:
            raise CommandRefused(f"session {self.agent_id} belongs to another process")
        self.process = process
        if self.kept is not None:
            self.kept.process = process


def _at_least(counts: Mapping[str, int], least: Mapping[str, int]) -> dict[str, int]:
    kinds = dict.fromkeys([*counts, *least])
    return {kind: max(counts.get(kind, 0), least.get(kind, 0)) for kind in kinds}


def owner_of(peer: Peer) -> Owner:
    """Return who owns what comes from a peer."""
    return Owner(peer.owner, peer.uid, peer.gid)


def writes_anywhere(peer: Peer) -> bool:
    """Return whether sessions of this peer may name any directory, without an approval.

    Only where the kernel says that the peer is the daemon's own user, or root.
    """
    return peer.uid in (0, os.geteuid())


def daemon_id(peer: Peer, session_id: str) -> str:
    """Return what the daemon calls a session that a peer opens as ``session_id``.

    The owner is a part of it, so nobody can take an id before the owner does, not even after
    a restart of the daemon: "9f…" is "9f…-1000" for user 1000. Local operators keep their ids; the
    holder of a key does not, whatever its role. Raises CommandRefused for an id that is too long
    for that.
    """
    if peer.role is Role.OPERATOR and peer.uid >= 0:
        return session_id
    if len(session_id) > MAX_ID_CHARACTERS:
        raise CommandRefused("the session's id is too long")
    if peer.uid >= 0:
        return f"{session_id}-{peer.uid}"
    return f"{session_id}-{hashlib.sha256(peer.owner.encode()).hexdigest()[:8]}"
