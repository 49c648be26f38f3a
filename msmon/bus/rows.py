"""What a reply tells: of processes, their traces, the outputs and the daemon itself.

These dataclasses are also what ``--json`` shows: a field's name is its key there. They differ from
messages in two ways. All their fields are sent, also those with a default, because scripts read
every key. And a field that a newer side has added is passed over, because no reader acts on it.

A field that is None is neither sent nor shown. Example: a row about npu-monitor has no
``trace_id``. A required field must be there all the same, so an empty map stands for its None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Optional, Union

from msmon.bounds import (
    Bound,
    Count,
    CountsByKind,
    HostName,
    Identifier,
    JobName,
    Nanoseconds,
    PathText,
    Prose,
    Sentence,
    Word,
)
from msmon.bus.words import Outcome, ProcessState, TraceState
from msmon.records.window_header import WindowHeader
from msmon.sessions import Drops, MonitorSettings

Reasons = Annotated[dict[Word, Prose], Bound(64)]
"""Kind name → why it can't be collected."""
Paths = Annotated[list[PathText], Bound(1000, cut=True)]
Steps = Annotated[list[int], Bound(2)]
Pids = Annotated[list[int], Bound(1000, cut=True)]
Words = Annotated[list[Word], Bound(64, cut=True)]


@dataclass(frozen=True)
class Facts:
    """Base of all rows; see the module for how they are sent."""


@dataclass(frozen=True)
class TraceRow(Facts):
    """The last detailed trace of a process."""

    state: Union[TraceState, Word] = TraceState.IDLE
    trace_id: Identifier = ""
    backend: Word = ""
    """The profiler that takes it: "torch_npu", "torch", "mindspore"."""
    start_step: int = -1
    """First traced step; -1: unknown yet."""
    stop_step: int = -1
    """The step after the last traced one; -1: unknown yet."""
    requested_steps: int = 0
    captured: Steps = field(default_factory=list)
    """First and last step on record; empty before that."""
    path: PathText = ""
    files: Paths = field(default_factory=list)
    reason: Prose = ""
    """Why it failed, or has fewer steps than were asked for."""
    partial: bool = False
    left_out: Words = field(default_factory=list)
    """Options that the profiler can't honour."""
    step_s: float = 0.0
    """Mean seconds per step of the process; 0: unknown."""
    steps_are: Sentence = ""
    """What is counted as a step in the process, for people; empty: nothing yet."""


@dataclass(frozen=True)
class ProcessRow(Facts):
    """Who a process is. Numbers are -1 (``world_size`` 0) where unknown."""

    host: HostName
    pid: int
    container: JobName
    rank: int
    local_rank: int
    world_size: int
    device: int
    framework: Word
    job_id: JobName
    uid: int
    command: Sentence
    """Empty for a peer that may not command the process: it may hold paths and secrets."""


@dataclass(frozen=True)
class StatusRow(ProcessRow):
    """What a process does and how much of it arrived. Counts are those of its last session."""

    state: Union[ProcessState, Word]
    session_id: Identifier
    settings: Optional[MonitorSettings]
    received: CountsByKind
    kept: CountsByKind
    untimed: CountsByKind
    drops: Drops
    files: Paths
    last_seen_s: float
    """Seconds since the last message."""
    step: int
    step_age_s: float
    cpu_s: float
    flush_age_s: float
    unavailable_kinds: Reasons
    stuck_in: Sentence
    library: Sentence
    problem: Prose
    trace: Optional[TraceRow]
    version: Word
    waits_for: Optional[Pids] = None
    """Pids of the processes that it has started and that train in its place."""
    order: Optional[Word] = None
    """The standing order that its session comes from, or that waits for it."""
    order_problem: Optional[Prose] = None
    """Why it does not follow that order."""


@dataclass(frozen=True)
class AnswerRow(ProcessRow):
    """What became of a command in one process."""

    ok: bool
    text: Prose
    next_step: Optional[Prose] = None
    session_id: Optional[Identifier] = None
    """The session that npu-monitor started, changed or stopped."""
    files: Optional[Paths] = None
    trace_id: Optional[Identifier] = None
    """The trace that nputrace started or cancelled."""
    step: Optional[int] = None
    trace: Optional[TraceRow] = None
    """Added by ``nputrace --wait``: how the trace ended."""


@dataclass(frozen=True)
class MissingRow(Facts):
    """A pid, rank or job that was asked for and is not there."""

    pid: Optional[int] = None
    rank: Optional[int] = None
    job_id: Optional[JobName] = None
    ok: bool = False
    state: Union[ProcessState, Word] = ProcessState.UNKNOWN
    text: Prose = ""


Row = Union[StatusRow, AnswerRow, MissingRow]
"""One row of a reply. On receipt the first class whose required fields are there is taken."""


def outcome_of(rows: Iterable[AnswerRow | MissingRow]) -> Outcome:
    """Return how a command went, all processes together."""
    succeeded = [row.ok for row in rows]
    if all(succeeded):
        return Outcome.OK
    return Outcome.PARTIAL if any(succeeded) else Outcome.FAILED


EXPORT_OWNER = "owner"
"""Key among the options of an output that writes the exports of one user or key."""


@dataclass(frozen=True)
class OutputRow(Facts):
    """One output of the daemon. ``written`` and ``drops`` count records, ``windows`` windows."""

    name: Word
    options: Annotated[dict[Word, Sentence], Bound(64)] = field(default_factory=dict)
    queue_bytes: int = 0
    written: CountsByKind = field(default_factory=dict)
    drops: Drops = field(default_factory=dict)
    problem: Prose = ""
    windows: Count = 0


@dataclass(frozen=True)
class OrderRow(Facts):
    """A standing order, shown to whoever may end it."""

    name: Word
    owner: Sentence
    selection: Sentence
    """As it is typed, "every process" for all."""
    options: Sentence
    given_ns: Nanoseconds
    following: Count
    """Processes with a session of it."""
    waiting: Count
    """Processes that it holds for and that don't follow, for a reason that their rows tell."""
    left_alone: Annotated[list[Sentence], Bound(64, cut=True)] = field(default_factory=list)
    """Selections that a stop took out of it."""
    file: PathText = ""
    """The daemon.toml that it stands in; empty: a command gave it."""
    problem: Prose = ""


@dataclass(frozen=True)
class DaemonRow(Facts):
    """The daemon itself."""

    version: Word
    protocol: Word = ""
    host: HostName = ""
    pid: int = -1
    uid: int = -1
    insecure: bool = False
    listens: Annotated[list[PathText], Bound(64)] = field(default_factory=list)
    sinks: Annotated[list[OutputRow], Bound(1000, cut=True)] = field(default_factory=list)
    orders: Annotated[list[OrderRow], Bound(1000, cut=True)] = field(default_factory=list)
    """The standing orders that the asker may end."""
    refused_messages: int = 0
    refused_connections: int = 0
    recent_windows: Count = 0
    """Windows that are kept for viewers."""
    recent_bytes: Count = 0
    recent_given_up: Count = 0
    """Windows that went before their time, because their room was needed."""


@dataclass(frozen=True)
class RecentSession(ProcessRow):
    """A session of which an answer holds windows or notes, and its process."""

    number: Count
    """What the answers of one epoch call it."""
    session_id: Identifier
    """Empty for a peer that may not command the process."""
    start_ns: Nanoseconds
    start_time: int
    """Of the process: see :class:`ProcessInfo <msmon.sessions.ProcessInfo>`."""
    launch: JobName


@dataclass(frozen=True)
class _Recent(Facts):
    """One item of an answer. ``number`` only grows within an epoch."""

    number: Count
    session: Count
    """The number of its session."""
    frame_bytes: Annotated[list[Count], Bound(8)]
    """How many bytes of the payload are its own, frame by frame. Items lie there in the order of
    their numbers, windows and notes together."""


@dataclass(frozen=True)
class RecentWindow(WindowHeader, _Recent):
    """A window that has come lately: its place, then its header. Payload: its frames."""


@dataclass(frozen=True)
class RecentNote(_Recent):
    """A note of a session, for example on its parallel groups. Payload: its value, UTF-8."""

    key: Word
