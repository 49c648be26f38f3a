"""What ``msmon top`` shows, as typed rows.

What is not known is None, and never 0. Ratios are 1.42 for 42 % more; shares are between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from msmon.commands.top.job_times import JobTimes
from msmon.insight.verdict import Abstained, Verdict
from msmon.live.seen import SeenRank
from msmon.records.windows import Window


class RankKey(NamedTuple):
    """What tells processes apart."""

    host: str
    pid: int


class OperatorKey(NamedTuple):
    """What tells the operators of a rank apart; ``device`` is -1 for the host."""

    kind: str
    device: int
    name: str
    domain: str
    size_class: int


ALL_RANKS = "*"
"""Key of the row that stands for all ranks of a job, among its groups."""


@dataclass(frozen=True)
class JobRow:
    """A job. ``world_size`` is what its ranks say; ``monitored`` those of which windows come."""

    key: str
    name: str
    hosts: int
    ranks: int
    monitored: int
    world_size: Optional[int]
    step: Optional[int]
    step_ns: Optional[float]
    """Median over its ranks, as are the shares."""
    exposed: Optional[float]
    idle: Optional[float]
    verdict: str
    """The kinds of its verdicts, the costliest first."""
    cost_percent: Optional[float]
    age_s: Optional[float]
    """Since the end of its newest window."""


@dataclass(frozen=True)
class GroupRow:
    """A communicator of a job, or all of its ranks."""

    key: str
    name: str
    ranks: tuple[int, ...]
    operations: tuple[str, ...]
    per_step: Optional[float]
    """Calls of a rank in a step."""
    mean_ns: Optional[float]
    """Of a call, the median over the ranks; waiting included."""
    shortest_ns: Optional[float]
    """The same of the rank where it is shortest: others have waited for that one."""
    last_rank: Optional[int]
    """The rank with the shortest calls."""
    share: Optional[float]
    """Of the time of the window, the median over the ranks."""
    verdict: str


@dataclass(frozen=True)
class RankRow:
    """A process: a rank of a job, or one that has no rank."""

    key: RankKey
    job: str
    rank: Optional[int]
    host: str
    pid: int
    device: Optional[int]
    state: str
    """As ``msmon status`` has it; empty where only windows are known."""
    step: Optional[int]
    step_ns: Optional[float]
    past: Optional[float]
    """Step time against that of its earlier windows."""
    busy: Optional[float]
    exposed: Optional[float]
    idle: Optional[float]
    work: Optional[float]
    """Its own work against that of its peers."""
    age_s: Optional[float]
    window_s: Optional[float]
    """Length of its newest window."""
    verdict: str


@dataclass(frozen=True)
class OperatorRow:
    """An operator of a rank, in its newest window."""

    key: OperatorKey
    name: str
    kind: str
    group: str
    size_bytes: Optional[int]
    """Of a collective, rounded down to a power of two."""
    count: int
    per_step: Optional[float]
    total_ns: int
    share: Optional[float]
    """Of the length of the window."""
    p50_ns: Optional[float]
    p95_ns: Optional[float]
    max_ns: int
    past: Optional[float]
    """Typical duration against that of its earlier windows."""
    peers: Optional[float]
    """The same against that of its peers."""


@dataclass(frozen=True)
class BandRow:
    """Durations from ``low_ns`` to ``high_ns``: how many, and the share of all, beside the share
    among the peers."""

    key: int
    low_ns: float
    high_ns: float
    count: int
    share: float
    peers: Optional[float]


@dataclass(frozen=True)
class JobVerdict:
    """A verdict, and of which job."""

    job: str
    verdict: Verdict


@dataclass(frozen=True)
class JobAbstained:
    """What can't be judged, and of which job."""

    job: str
    abstained: Abstained


@dataclass(frozen=True)
class RankWindow:
    """The newest window of a process, and what the ones before tell."""

    process: SeenRank
    session: str
    window: Window
    step_times_ns: tuple[float, ...]
    """Mean step time of its windows in ns, the newest last; those without steps are left out."""
    step_ns: Optional[float]
    past: Optional[float]
    """Step time against that of its earlier windows."""
    shares: tuple[Optional[float], Optional[float], Optional[float]]
    """Busy, exposed and idle, of what was measured on all of its devices."""


@dataclass(frozen=True)
class Model:
    """All that is known at ``now_ns``. Nothing in it changes; each look makes a new one."""

    now_ns: int = 0
    jobs: tuple[JobRow, ...] = ()
    ranks: Mapping[str, tuple[RankRow, ...]] = field(default_factory=dict)
    """By job, in the order of ranks."""
    verdicts: tuple[JobVerdict, ...] = ()
    ended: tuple[JobVerdict, ...] = ()
    """Verdicts that are over, the latest first."""
    abstained: tuple[JobAbstained, ...] = ()
    problems: tuple[str, ...] = ()
    """What keeps something from being seen, and what to do about it, as sentences."""
    daemons: int = 0
    """Daemons that answer."""
    times: Mapping[str, JobTimes] = field(default_factory=dict)
    windows: Mapping[RankKey, RankWindow] = field(default_factory=dict)
