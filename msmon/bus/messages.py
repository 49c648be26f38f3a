"""Every message on the wire, as one small dataclass each.

``codec`` turns them into frames and back. A field that is not listed here is an
error on receipt; a message whose major protocol version differs is refused.
Direction: A agent, D daemon, C client (command line).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar

from msmon.records.window_header import WindowHeader
from msmon.sessions import Counts, Gap, ProcessInfo, SessionEnd

PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 0

MAX_PROBLEM_CHARACTERS = 4096
"""What a status tells of an error at most: a longer header could not be sent at all."""


@dataclass(frozen=True)
class Message:
    """Base of all messages. ``TYPE`` is the name on the wire."""

    TYPE: ClassVar[str] = ""


# --- greeting ---------------------------------------------------------------


@dataclass(frozen=True)
class Hello(Message):
    """A→D, C→D. First message on every connection. ``process`` is None for a client."""

    TYPE = "hello"
    version: str
    role: str
    """"agent", "client", or "carrier": a helper process of a framework, which takes commands
    for ranks that have no agent; ``process`` is then the rank that it belongs to."""
    process: ProcessInfo | None = None


@dataclass(frozen=True)
class Welcome(Message):
    """D→A, D→C. Answer to a hello."""

    TYPE = "welcome"
    version: str
    host: str
    pid: int
    heartbeat_s: float


@dataclass(frozen=True)
class Refused(Message):
    """D→any. The message with the same id was not accepted."""

    TYPE = "refused"
    reason: str
    next_step: str = ""


@dataclass(frozen=True)
class Goodbye(Message):
    """A→D. The process ends its connection on purpose."""

    TYPE = "goodbye"
    reason: str


# --- agent state --------------------------------------------------------------


class TraceState(enum.Enum):
    """What a detailed trace is doing. It holds the process's profiler while READY or RUNNING."""

    IDLE = "idle"
    """No trace was asked for yet."""
    READY = "ready"
    """Accepted; its first step is still to come."""
    RUNNING = "running"
    PARSING = "parsing"
    """All steps are on record and the files are being written."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Status(Message):
    """A→D. Heartbeat and state, sent every ``heartbeat_s`` and after each change."""

    TYPE = "status"
    state: str
    """"idle", "starting", "monitoring", "paused", "stopping", "failed", "tracing"."""
    step: int = -1
    step_age_s: float = -1.0
    """Seconds since the last step; -1 when none was seen."""
    session_id: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    """``MonitorSettings.as_fields()`` of the running session, else empty."""
    unavailable_kinds: dict[str, str] = field(default_factory=dict)
    """Kind name → why it could not be enabled."""
    counts: Counts = field(default_factory=Counts)
    stuck_in: str = ""
    """The MSPTI call that has not returned for seconds, say "msptiActivityEnable(Kernel)"."""
    cpu_s: float = 0.0
    """CPU seconds used by the agent's threads so far."""
    flush_age_s: float = -1.0
    """Seconds since MSPTI was last flushed in this session; -1 when it has not been yet."""
    library: str = ""
    """Which MSPTI library is in use and why, or "simulated"."""
    problem: str = ""
    """What keeps this process from being monitored, if anything."""
    trace: dict[str, Any] = field(default_factory=dict)
    """The last detailed trace: state (a value of TraceState), trace_id, backend, start_step,
    stop_step (the step after the last), captured, path, files, reason, …; and step_s, the mean
    seconds per step."""


# --- commands -------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """Which processes a command is for; an empty list means no restriction."""

    pids: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    job_ids: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MonitorRequest(Message):
    """C→D. ``action``: start, update or stop. ``fields`` holds only what was mentioned."""

    TYPE = "monitor-request"
    action: str
    fields: dict[str, Any] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    timeout_s: float = 10.0


@dataclass(frozen=True)
class TraceRequest(Message):
    """C→D. ``action``: start or cancel. ``fields``: see ``trace_options.TRACE_OPTIONS``."""

    TYPE = "trace-request"
    action: str
    fields: dict[str, Any] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    process_limit: int = 0
    """At most this many processes; 0: all matched."""
    pause_monitor: bool = False
    timeout_s: float = 10.0


@dataclass(frozen=True)
class StatusRequest(Message):
    """C→D."""

    TYPE = "status-request"
    selection: Selection = field(default_factory=Selection)


@dataclass(frozen=True)
class VersionRequest(Message):
    """C→D."""

    TYPE = "version-request"


@dataclass(frozen=True)
class Reply(Message):
    """D→C. Final answer to a request.

    ``outcome``: "ok", "partial" (some process failed), "failed" (all failed),
    "none-registered", "none-matched", "lost" (matched, since dead).
    ``rows``: one mapping per process: host, pid, rank, device, framework, job_id, state,
    ok, text, files, … ``daemon``: facts on the daemon itself (version, host, pid, sinks).
    """

    TYPE = "reply"
    outcome: str
    text: str = ""
    next_step: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    daemon: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Command(Message):
    """D→A. ``action``: monitor.start, monitor.update, monitor.stop, trace.start, trace.cancel."""

    TYPE = "command"
    action: str
    fields: dict[str, Any] = field(default_factory=dict)
    request_id: str = ""
    """Equal in every command that one request caused: a rank carries it out once."""
    ranks: list[int] = field(default_factory=list)
    """To a carrier: only these ranks are meant; empty: all that it reaches."""


@dataclass(frozen=True)
class Answer(Message):
    """A→D. Answer to the command with the same id."""

    TYPE = "answer"
    ok: bool
    text: str = ""
    next_step: str = ""
    session_id: str = ""
    """The session, or the trace, that the command was about."""
    step: int = -1
    """The current step, in answers to trace commands."""


# --- the stream of one session: numbered from 1, acknowledged, resent, never reordered ---


@dataclass(frozen=True)
class SessionOpened(Message):
    """A→D. Opens a stream; also the first thing resent after a reconnect (same seq)."""

    TYPE = "session-opened"
    session_id: str
    seq: int
    settings: dict[str, Any]
    start_ns: int


@dataclass(frozen=True)
class Records(Message):
    """A→D. One batch. Payload frames: those of ``Batch.to_frames``."""

    TYPE = "records"
    session_id: str
    seq: int
    kind: int
    count: int


@dataclass(frozen=True)
class InStream(Message):
    """Base of a message whose other fields come from elsewhere: its place in the stream."""

    session_id: str
    seq: int


@dataclass(frozen=True)
class WindowReport(WindowHeader, InStream):
    """A→D. One window: its place, then its header. Payload frames: ``Window.to_frames``."""

    TYPE = "window"


@dataclass(frozen=True)
class SessionNote(Message):
    """A→D. A fact about the session: ``key`` "parallel_group_info", "settings", …

    A long value is empty here and comes as one payload frame (UTF-8).
    """

    TYPE = "session-note"
    session_id: str
    seq: int
    key: str
    value: str


@dataclass(frozen=True)
class GapReport(Message):
    """A→D. Records were lost before they could be sent."""

    TYPE = "gap"
    session_id: str
    seq: int
    gap: Gap


@dataclass(frozen=True)
class SessionClosed(Message):
    """A→D. Last of the stream."""

    TYPE = "session-closed"
    session_id: str
    seq: int
    end: SessionEnd


@dataclass(frozen=True)
class Acknowledged(Message):
    """D→A. Everything of the session up to ``seq`` is safe with the daemon or its outputs."""

    TYPE = "ack"
    session_id: str
    seq: int
