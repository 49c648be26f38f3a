"""Every message on the wire, as one small dataclass each.

``codec`` turns them into frames and back. A field that is not listed here is an
error on receipt; a message whose major protocol version differs is refused.
Direction: A agent, D daemon, C client (command line).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Optional, Union

from msmon.bounds import (
    Bound,
    Count,
    HostName,
    Identifier,
    JobName,
    Nanoseconds,
    OptionValues,
    Prose,
    Sentence,
    Word,
)
from msmon.bus.rows import (
    AnswerRow,
    DaemonRow,
    MissingRow,
    Reasons,
    RecentNote,
    RecentSession,
    RecentWindow,
    Row,
    StatusRow,
    TraceRow,
)
from msmon.bus.words import AgentAction, MonitorAction, Outcome, ProcessState, TraceAction
from msmon.records.window_header import WindowHeader
from msmon.sessions import Counts, Gap, MonitorSettings, ProcessInfo, SessionEnd

PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 2
"""1: a daemon takes ``WindowSoFar``. 2: windows tell of steps, devices, sizes and collectives; a
daemon answers a ``WindowsRequest`` and keeps standing orders, and an agent tells which of them its
session comes from."""

ORDERS_MINOR = 2
"""From this minor version on an agent takes the name of a standing order."""

MAX_NUMBERS = 10_000
"""Process ids or ranks in one selection: as many as processes can be registered."""

MAX_JOBS = 1000
"""Job ids in one selection."""

Numbers = Annotated[list[int], Bound(MAX_NUMBERS)]

MAX_PROBLEM_CHARACTERS = 4096
"""What a status tells of an error at most: a longer header could not be sent at all."""

MAX_ROWS = 20_000
"""Rows of a reply. A daemon knows no more than half as many processes."""

MAX_RECENT_ITEMS = 500
"""Windows and notes in one answer to a ``WindowsRequest``."""

NoteText = Annotated[str, Bound(64 << 10)]
"""As long as a header may be. Longer values come as a payload frame."""

ReplyText = Annotated[str, Bound(64 << 10, cut=True)]
"""It may name many processes, or what each of many daemons says."""


@dataclass(frozen=True)
class Message:
    """Base of all messages. ``TYPE`` is the name on the wire."""

    TYPE: ClassVar[str] = ""


# --- greeting ---------------------------------------------------------------


@dataclass(frozen=True)
class Hello(Message):
    """A→D, C→D. First message on every connection. ``process`` is None for a client.

    All hellos of one agent have the same message id. When the process says hello with another one,
    another program runs in it (``execv``), and what the former one had open is over.
    """

    TYPE = "hello"
    version: Word
    role: Word
    """"agent", "client", or "carrier": a helper process of a framework, which takes commands
    for ranks that have no agent; ``process`` is then the rank that it belongs to."""
    process: Optional[ProcessInfo] = None


@dataclass(frozen=True)
class Welcome(Message):
    """D→A, D→C. Answer to a hello."""

    TYPE = "welcome"
    version: Word
    host: HostName
    pid: int
    heartbeat_s: float


@dataclass(frozen=True)
class Refused(Message):
    """D→any. The message with the same id was not accepted."""

    TYPE = "refused"
    reason: Prose
    next_step: Prose = ""


@dataclass(frozen=True)
class Goodbye(Message):
    """A→D. The process ends its connection on purpose."""

    TYPE = "goodbye"
    reason: Sentence


# --- agent state --------------------------------------------------------------


@dataclass(frozen=True)
class Status(Message):
    """A→D. Heartbeat and state, sent every ``heartbeat_s`` and after each change."""

    TYPE = "status"
    state: Union[ProcessState, Word]
    step: int = -1
    step_age_s: float = -1.0
    """Seconds since the last step; -1 when none was seen."""
    session_id: Identifier = ""
    settings: Optional[MonitorSettings] = None
    """What is in force in the running session, ``kinds`` spelled out; None when none runs."""
    unavailable_kinds: Reasons = field(default_factory=dict)
    """Kind name → why it could not be enabled."""
    counts: Counts = field(default_factory=Counts)
    stuck_in: Sentence = ""
    """The MSPTI call that has not returned for seconds, say "msptiActivityEnable(Kernel)"."""
    cpu_s: float = 0.0
    """CPU seconds used by the agent's threads so far."""
    flush_age_s: float = -1.0
    """Seconds since MSPTI was last flushed in this session; -1 when it has not been yet."""
    library: Sentence = ""
    """Which MSPTI library is in use and why, or "simulated"."""
    problem: Prose = ""
    """What keeps this process from being monitored, if anything."""
    trace: Optional[TraceRow] = None
    """The last detailed trace, or the state "idle" with the pace of the steps."""


# --- commands -------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """Which processes a command is for; an empty list means no restriction."""

    pids: Numbers = field(default_factory=list)
    ranks: Numbers = field(default_factory=list)
    job_ids: Annotated[list[JobName], Bound(MAX_JOBS)] = field(default_factory=list)


@dataclass(frozen=True)
class MonitorRequest(Message):
    """C→D. ``fields`` holds only what was mentioned."""

    TYPE = "monitor-request"
    action: Union[MonitorAction, Word]
    fields: OptionValues = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    timeout_s: float = 10.0
    always: bool = False
    """A start is a standing order. Only for daemons of protocol 1.2 and later."""
    name: Word = ""
    """Of the standing order that is started or stopped."""


@dataclass(frozen=True)
class TraceRequest(Message):
    """C→D. ``fields``: see ``trace_options.TRACE_OPTIONS``."""

    TYPE = "trace-request"
    action: Union[TraceAction, Word]
    fields: OptionValues = field(default_factory=dict)
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
class WindowsRequest(Message):
    """C→D. The recent windows of the selected processes, and notes of their sessions.

    Only for daemons of protocol 1.2 and later.
    """

    TYPE = "windows-request"
    selection: Selection = field(default_factory=Selection)
    epoch: Identifier = ""
    """The epoch of the last answer. To another daemon ``after`` means nothing."""
    after: Count = 0
    """Only what has a larger number."""
    most_bytes: Count = 1 << 20
    """Frames in the answer, about; the daemon may hold back more."""
    receipt: Identifier = ""
    """That of the last answer on this connection, which proves that it was read."""


@dataclass(frozen=True)
class WindowsReply(Message):
    """D→C. Answer to a ``WindowsRequest``. Payload: one frame with the frames of all items."""

    TYPE = "windows-reply"
    epoch: Identifier
    """Random in each daemon."""
    last: Count
    """Ask for what comes after this number next."""
    missed: Count = 0
    """Windows with larger numbers than was asked for that are not kept any more."""
    more: bool = False
    """There are more already."""
    receipt: Identifier = ""
    sessions: Annotated[list[RecentSession], Bound(MAX_RECENT_ITEMS)] = field(default_factory=list)
    windows: Annotated[list[RecentWindow], Bound(MAX_RECENT_ITEMS)] = field(default_factory=list)
    notes: Annotated[list[RecentNote], Bound(MAX_RECENT_ITEMS)] = field(default_factory=list)


@dataclass(frozen=True)
class Reply(Message):
    """D→C. Final answer to a request.

    A status has a row per process. A command has one for each process that it was for, and one
    for each pid, rank or job that was asked for and is not there. ``daemon`` comes with the
    answers to a status and to a question for the version.
    """

    TYPE = "reply"
    outcome: Union[Outcome, Word]
    text: ReplyText = ""
    next_step: ReplyText = ""
    rows: Annotated[list[Row], Bound(MAX_ROWS, cut=True, leave_out=True)] = field(
        default_factory=list
    )
    """On receipt a row that is wrong is left out, and ``text`` says so: one process must not keep
    what is known of all others from whoever asks."""
    daemon: Optional[DaemonRow] = None

    @property
    def status_rows(self) -> list[StatusRow]:
        """The rows of an answer to a status."""
        return [row for row in self.rows if isinstance(row, StatusRow)]

    @property
    def answer_rows(self) -> list[Union[AnswerRow, MissingRow]]:
        """The rows of an answer to a command."""
        return [row for row in self.rows if not isinstance(row, StatusRow)]


@dataclass(frozen=True)
class Command(Message):
    """D→A. One agent is to do something, and answers with the same id."""

    TYPE = "command"
    action: Union[AgentAction, Word]
    fields: OptionValues = field(default_factory=dict)
    request_id: Identifier = ""
    """Equal in every command that one request caused: a rank carries it out once."""
    ranks: Numbers = field(default_factory=list)
    """To a carrier: only these ranks are meant; empty: all that it reaches."""


@dataclass(frozen=True)
class Answer(Message):
    """A→D. Answer to the command with the same id."""

    TYPE = "answer"
    ok: bool
    text: Prose = ""
    next_step: Prose = ""
    session_id: Identifier = ""
    """The session, or the trace, that the command was about."""
    step: int = -1
    """The current step, in answers to trace commands."""


# --- the stream of one session: numbered from 1, acknowledged, resent, never reordered ---


@dataclass(frozen=True)
class SessionOpened(Message):
    """A→D. Opens a stream; also the first thing resent after a reconnect (same seq)."""

    TYPE = "session-opened"
    session_id: Identifier
    seq: Count
    settings: MonitorSettings
    """In force when it began, ``kinds`` spelled out."""
    start_ns: Nanoseconds


@dataclass(frozen=True)
class Records(Message):
    """A→D. One batch. Payload frames: those of ``Batch.to_frames``."""

    TYPE = "records"
    session_id: Identifier
    seq: Count
    kind: int
    count: Count


@dataclass(frozen=True)
class InStream(Message):
    """Base of a message whose other fields come from elsewhere: its place in the stream."""

    session_id: Identifier
    seq: Count


@dataclass(frozen=True)
class WindowReport(WindowHeader, InStream):
    """A→D. One window: its place, then its header. Payload frames: ``window_frames.frames_of``."""

    TYPE = "window"


@dataclass(frozen=True)
class OfSession(Message):
    """Base of a message about a session that is not part of its stream."""

    session_id: Identifier


@dataclass(frozen=True)
class WindowSoFar(WindowHeader, OfSession):
    """A→D. All that the open window holds so far. Payload frames: ``window_frames.frames_of``.

    It is sent about once a second, so that little is lost when the process is killed: the daemon
    then closes the window with it. It is no part of the stream: it has no number, is not
    acknowledged and never sent again. The next one replaces it, and so does the report of the
    window with this index or a later one. Only for daemons of protocol 1.1 and later.
    """

    TYPE = "window-so-far"


@dataclass(frozen=True)
class SessionNote(Message):
    """A→D. A fact about the session: ``key`` "parallel_group_info", "settings", …

    A long value is empty here and comes as one payload frame (UTF-8).
    """

    TYPE = "session-note"
    session_id: Identifier
    seq: Count
    key: Word
    value: NoteText


@dataclass(frozen=True)
class GapReport(Message):
    """A→D. Records were lost before they could be sent."""

    TYPE = "gap"
    session_id: Identifier
    seq: Count
    gap: Gap


@dataclass(frozen=True)
class SessionClosed(Message):
    """A→D. Last of the stream."""

    TYPE = "session-closed"
    session_id: Identifier
    seq: Count
    end: SessionEnd


@dataclass(frozen=True)
class Acknowledged(Message):
    """D→A. Everything of the session up to ``seq`` is safe with the daemon or its outputs."""

    TYPE = "ack"
    session_id: Identifier
    seq: Count
