"""Deliveries: what an output is given, one small object for each event of a session.

Each knows how it is applied to a sink. That happens where the sink lives, in a thread of the
daemon or in a process of its own. Deliveries hold the frames as they came over the wire, and
only there they are decoded: the broker's loop has no time for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

from msmon.bounds import added
from msmon.daemon.outputs.export_roots import require_closed
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.records.window_frames import window_of
from msmon.records.window_header import WindowHeader
from msmon.sessions import DropStage, Gap, SessionEnd, SessionInfo
from msmon.sinks.base import CommitFailed, Progress, ResumableSink, SessionOutput, Sink
from msmon.sinks.exports import require_below, resolve_export

BASE_BYTES = 256
"""What a delivery without payload counts as in a queue."""

KIND_BYTES = 128
"""What each kind that a gap names counts as in a queue."""

MAX_KINDS = 63
OTHER_KINDS = "other"
"""A gap names so many kinds; the records of all further ones are counted under this name."""


@dataclass(frozen=True)
class _InSession:
    """What all deliveries of a session have in common."""

    session_id: str
    seq: int

    @property
    def size_bytes(self) -> int:
        """What it counts as in a queue."""
        return BASE_BYTES


@dataclass(frozen=True)
class BatchDelivery(_InSession):
    """A batch of records of one kind. ``payload``: the frames of ``Batch.to_frames``."""

    kind: int
    count: int
    payload: tuple[bytes, ...]

    @property
    def size_bytes(self) -> int:
        """What it counts as in a queue."""
        return BASE_BYTES + sum(map(len, self.payload))

    def apply(self, sink: Sink) -> None:
        """Decode and write. Raises ValueError for frames that don't fit."""
        records, strings = self.payload
        batch = Batch.from_frames(ActivityKind(self.kind), records, strings)
        sink.write_records(self.session_id, self.seq, batch)


@dataclass(frozen=True)
class WindowDelivery(_InSession):
    """A window of statistics. ``payload``: see ``window_frames``.

    ``found_here``: the daemon closed it, because the process is gone. It has no number of its own.
    """

    header: WindowHeader
    payload: tuple[bytes, ...]
    found_here: bool = False

    @property
    def size_bytes(self) -> int:
        """What it counts as in a queue."""
        return BASE_BYTES + sum(map(len, self.payload))

    def apply(self, sink: Sink) -> None:
        """Decode and write. Raises ValueError for frames that don't fit."""
        sink.write_window(self.session_id, self.seq, window_of(self.header, self.payload))


@dataclass(frozen=True)
class GapDelivery(_InSession):
    """Records were lost. ``found_here``: this output found that numbers are missing."""

    gap: Gap
    found_here: bool = False

    @property
    def size_bytes(self) -> int:
        """What it counts as in a queue. One that was found here never took room in it."""
        return 0 if self.found_here else BASE_BYTES

    def apply(self, sink: Sink) -> None:
        """Write the gap."""
        sink.write_gap(self.session_id, self.seq, self.gap)


@dataclass(frozen=True)
class NoteDelivery(_InSession):
    """A fact about the session. ``value`` is UTF-8, because a text in memory may be four times
    as large as its bytes: one character beyond 16 bits widens all."""

    key: str
    value: bytes

    @property
    def size_bytes(self) -> int:
        """What it counts as in a queue."""
        return BASE_BYTES + len(self.value)

    def apply(self, sink: Sink) -> None:
        """Write the note."""
        value = self.value.decode("utf-8", "replace")
        sink.write_note(self.session_id, self.seq, self.key, value)


@dataclass(frozen=True)
class Closing(_InSession):
    """The end of a session."""

    end: SessionEnd

    def apply(self, sink: Sink) -> None:
        """Close the session."""
        sink.close_session(self.session_id, self.seq, self.end)


@dataclass(frozen=True)
class Skipped(_InSession):
    """Keeps the place of a delivery that the sink does not want, or that was dropped and counted.

    So the sequence numbers stay without holes. It may stand for many in a row, from
    ``first_seq`` to ``seq``. The gap is written with the last of these numbers. So a commit
    holds both or neither: what a gap tells of never comes again.
    """

    first_seq: int = 0
    """0: only ``seq``."""
    gap: Gap | None = None
    """What was lost at these places; None: nothing."""

    @property
    def size_bytes(self) -> int:
        """What it counts as in a queue."""
        return BASE_BYTES + KIND_BYTES * len(self.gap.records or ()) if self.gap else BASE_BYTES

    def apply(self, sink: Sink) -> None:
        """Write the gap, if there is one; in any case the sink learns how far the session is."""
        if self.gap is not None:
            sink.write_gap(self.session_id, self.seq, self.gap)
        else:
            sink.pass_over(self.session_id, self.seq)

    def can_join(self, following: Skipped) -> bool:
        """Whether one may stand for both: what is lost must stay apart by its stage."""
        return self.gap is None or following.gap is None or self.gap.stage == following.gap.stage

    def joined(self, following: Skipped) -> Skipped:
        """Return what stands for both."""
        gap = self.gap or following.gap
        if self.gap is not None and following.gap is not None:
            gap = _joined_gaps(self.gap, following.gap)
        return Skipped(self.session_id, following.seq, self.first_seq or self.seq, gap)


def _joined_gaps(first: Gap, second: Gap) -> Gap:
    """Return one gap for both, with the stage and the reason of the first."""
    lost = dict(first.records or {})
    for kind, count in (second.records or {}).items():
        name = kind if kind in lost or len(lost) < MAX_KINDS else OTHER_KINDS
        lost[name] = added(lost.get(name, 0), count)
    unknown = first.records is None and second.records is None
    end_ns = max(first.end_ns, second.end_ns)
    return Gap(first.stage, first.start_ns, end_ns, None if unknown else lost, first.reason)


Delivery = Union[BatchDelivery, WindowDelivery, GapDelivery, NoteDelivery, Closing, Skipped]
"""What is queued, in the order of the session's sequence numbers."""


@dataclass(frozen=True)
class Opening:
    """A session begins, or goes on in a sink that was started anew."""

    session: SessionInfo
    progress: Progress
    below: tuple[str, ...] | None = None
    """For data that the daemon's user writes for somebody else: the export roots in force.
    None: the owner's own rights say where it may go."""

    def apply(self, sink: Sink) -> SessionOutput:
        """Open the session; returns the sink's answer. Raises UsageError or SinkError."""
        if self.below is not None:
            directory = Path(self.session.settings.log_file)
            require_below(directory, self.below)
            require_closed(directory, make=True)
        if isinstance(sink, ResumableSink):
            return sink.open_session(self.session, self.progress)
        return sink.open_session(self.session)


@dataclass(frozen=True)
class Forgetting:
    """Nothing of a session that was closed comes again."""

    session_id: str

    def apply(self, sink: Sink) -> None:
        """Have the sink release what it still holds."""
        sink.forget_session(self.session_id)


@dataclass(frozen=True)
class Committed:
    """What became of all sessions at a commit.

    ``files``: session id → its files, where others than was said last. ``failed``:
    session id → reason.
    """

    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Commit:
    """Everything taken so far is to be made durable."""

    def apply(self, sink: Sink) -> Committed:
        """Commit; returns which sessions failed."""
        try:
            return Committed(sink.commit() or {})
        except CommitFailed as error:
            return Committed(error.files, error.sessions)


@dataclass(frozen=True)
class ExportCheck:
    """Whether an export to this path would work. ``roots``: None allows any place.

    ``closed``: only the process's user and root may be able to change anything at that place.
    """

    path: str
    roots: tuple[str, ...] | None
    closed: bool = False

    def apply(self, sink: Sink) -> str:
        """Return the directory without links. Raises UsageError or SinkError."""
        resolved = resolve_export(self.path, self.roots)
        if self.closed:
            require_closed(resolved)
        return str(resolved)


Request = Union[Delivery, Opening, Forgetting, Commit, ExportCheck]
"""Everything that is asked of a sink, or of the process it lives in."""

Answer = Union[SessionOutput, Committed, str, None]
"""What comes back: of Opening, Commit, ExportCheck, and of all others."""


def loss_of(delivery: Delivery, stage: DropStage) -> tuple[DropStage, Mapping[str, int]] | None:
    """Return what is lost with a delivery: the stage it counts under, and records per kind.

    ``stage`` is where it happens. Windows are a stage of their own, because the records in them may
    well be in an export. None where nothing is lost that is counted.
    """
    if isinstance(delivery, BatchDelivery):
        return stage, {ActivityKind(delivery.kind).name: delivery.count}
    if isinstance(delivery, WindowDelivery):
        return DropStage.WINDOWS, delivery.header.kept
    return None
