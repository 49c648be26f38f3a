"""A window as a daemon hands it out, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass

from msmon.records.windows import Window


@dataclass(frozen=True)
class SeenRank:
    """The process of a rank, as the one that judges knows it. Numbers are -1 where unknown."""

    host: str
    pid: int
    start_time: int
    """As its host counts; a pid alone may come again."""
    job: str = ""
    rank: int = -1
    world_size: int = 0
    """Ranks of the job; 0 where unknown."""
    device: int = -1


@dataclass(frozen=True)
class SeenWindow:
    """A window of a session of a process."""

    process: SeenRank
    session: str
    """What tells the sessions of one process apart; the running numbers begin anew in each."""
    began_ns: int
    """When the session began, wall clock."""
    window: Window
