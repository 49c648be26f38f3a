"""One registered process: who it is, whether it still lives, and what it last said."""

from __future__ import annotations

import enum
import functools
import math
from dataclasses import dataclass

from msmon.bus.messages import Status
from msmon.daemon.access.authentication import Peer
from msmon.sessions import ProcessInfo

_CARRIER_OF = "carrier of "


class Life(enum.Enum):
    """Whether a registered process still lives."""

    LIVE = "live"
    SILENT = "silent"
    """It says nothing, but it is there. Example: a call of native code that keeps Python's lock for
    30 s. Its sessions stay open, and commands wait for it."""
    LOST = "lost"
    """It fell silent and is gone, or cut off; it may come back."""
    ENDED = "ended"
    """It said goodbye."""


@dataclass
class Process:
    """A registered process. ``last_seen_s`` and ``gone_s`` are on the monotonic clock.

    Written on the broker's loop only: by ``Registry``, and ``session_id`` by ``Streams``.
    """

    info: ProcessInfo
    peer: Peer
    route: bytes
    """Routing id of its connection, as the ROUTER gave it."""
    version: str
    last_seen_s: float
    life: Life = Life.LIVE
    gone_s: float = 0.0
    status: Status | None = None
    status_bytes: int = 0
    """Size of its last status on the wire, which is counted against its owner."""
    session_id: str = ""
    """The last session that it opened."""
    carrier: bool = False
    """A helper process of a framework speaks for the process, which may have no agent."""
    names_orders: bool = False
    """Its agent tells which standing order its session comes from."""
    agent_id: str = ""
    """Message id of its hello; another agent in the same process has another one."""
    judged_s: float = -math.inf
    """When it was looked at last, because it said nothing."""
    since_s: float = 0.0
    """When it registered first."""
    stepped_s: float = -math.inf
    """When it made its last step; minus infinity: none was seen."""

    @property
    def is_there(self) -> bool:
        """Whether it lives, as far as anybody can see."""
        return self.life in (Life.LIVE, Life.SILENT)

    @functools.cached_property
    def key(self) -> str:
        """Text that no other registered process shares. It stays as long as the process."""
        return key_of(self.peer, self.info, self.carrier)

    @property
    def label(self) -> str:
        """How logs and answers call it."""
        rank = f" (rank {self.info.rank})" if self.info.rank >= 0 else ""
        return f"process {self.info.pid}{rank} on {self.info.host}"


def launch_of(process: Process) -> tuple[str, str, str]:
    """Return what the ranks of one launch of one owner on one host share."""
    return process.peer.owner, process.info.host, process.info.launch


def starter_of(process: Process) -> tuple[str, str, str, str]:
    """Return which process has started this one; :func:`as_starter` gives the same for that one."""
    info = process.info
    return process.peer.owner, info.host, info.container, info.started_by


def as_starter(process: Process) -> tuple[str, str, str, str]:
    """Return what :func:`starter_of` gives for the processes that this one has started."""
    info = process.info
    return process.peer.owner, info.host, info.container, f"{info.pid}:{info.start_time}"


def key_of(peer: Peer, info: ProcessInfo, carrier: bool) -> str:
    """Return what identifies a process among all registered ones."""
    return f"{peer.owner}/{_CARRIER_OF if carrier else ''}{info.key}"
