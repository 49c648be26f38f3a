"""What is known about a monitored process and about one npu-monitor run in it.

A *session* runs from start to stop inside one process. Its settings are changed
by commands that carry only what they mention; everything else stays as it is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Optional, Union

from msmon.bounds import (
    Bound,
    Count,
    CountsByKind,
    HostName,
    Identifier,
    JobName,
    Nanoseconds,
    OptionText,
    PathText,
    Sentence,
    Word,
    added,
)
from msmon.errors import UsageError
from msmon.records.filter import Filter
from msmon.records.kinds import ActivityKind, format_kinds, parse_kinds
from msmon.settings.options import MONITOR_OPTION, check_fields
from msmon.vocabulary import Vocabulary

UNKNOWN_RANK = -1


class DropStage(Vocabulary):
    """Where records, or ranges of markers, are lost; in the order that they travel."""

    SLOTS = "slots"
    """MSPTI found no free buffer."""
    DECODE = "decode"
    """Bytes that are no known activity record, and records that an error kept from being read."""
    EARLY = "early"
    """Records left out because they ended before the session began."""
    MARKERS = "markers"
    """Ranges given up before their end, because too many were open."""
    OPEN = "open"
    """Ranges still open when the session ended; a session that runs has none."""
    UPLINK = "uplink"
    """The agent's memory bound: the daemon was away or too slow."""
    SINK = "sink"
    """The queue of an output was full."""
    DISK = "disk"
    """An output failed to write."""
    WINDOWS = "windows"
    """Windows of statistics that were lost at any place, as the records in them. The records
    themselves may well be in an export, so they are a stage of their own."""
    REFUSED = "refused"
    """The daemon does not take the session, or can't read a message of it."""
    PAUSED = "paused"
    """Only gaps have it: a trace had the profiler, so nothing was recorded and nothing dropped."""
    OTHER = "other"
    """Stages that a newer agent names and this daemon doesn't know, all together."""


Drops = Annotated[dict[Union[DropStage, Word], Optional[Count]], Bound(16)]
"""Stage → records lost there; None: nobody knows how many. A newer side may know more stages."""


def alarming_drops(drops: Mapping[str, int | None]) -> Drops:
    """Return the drops that tell of trouble: stages that lost nothing are left out.

    So are OPEN and EARLY. A job that goes on when its monitoring stops is in the middle of some
    range, for example its step. And what came before the session is no part of it.
    """
    quiet = (DropStage.OPEN, DropStage.EARLY)
    return {stage: count for stage, count in drops.items() if count != 0 and stage not in quiet}


def merged_drops(*parts: Drops) -> Drops:
    """Sum drops per stage; a stage with an unknown part is unknown."""
    total: Drops = {}
    for part in parts:
        for stage, count in part.items():
            known = total.get(stage, 0)
            total[stage] = None if count is None or known is None else added(known, count)
    return total


def with_known_stages(drops: Drops) -> Drops:
    """Return drops whose unknown stages are summed as ``OTHER``, so that they are few."""
    known = set(DropStage)
    return merged_drops(
        *({stage if stage in known else DropStage.OTHER: drops[stage]} for stage in drops)
    )


@dataclass(frozen=True)
class ProcessInfo:
    """A training process. ``key`` identifies it even where pids repeat across containers."""

    host: HostName
    pid: int
    start_time: int
    """Start time in clock ticks since boot (/proc/PID/stat, field 22)."""
    container: JobName = ""
    """Container or pid namespace id; empty outside containers."""
    rank: int = UNKNOWN_RANK
    local_rank: int = UNKNOWN_RANK
    world_size: int = 0
    device: int = -1
    job_id: JobName = ""
    """Job id of the scheduler, kept as text ("123_4" is a valid Slurm id)."""
    framework: Word = ""
    uid: int = -1
    command: Sentence = ""
    launch: JobName = ""
    """What all ranks of one launch on this host share, and no other launch; may be empty."""
    local_world_size: int = 0
    """Ranks of the launch on this host; 0: unknown."""
    started_by: Identifier = ""
    """Pid and start time ("12:3456") of the registered process that has started this one."""

    @property
    def key(self) -> str:
        """Text that no other living process shares."""
        return f"{self.host}/{self.container}/{self.pid}/{self.start_time}"


@dataclass(frozen=True)
class MonitorSettings:
    """Settings in force for one session; fields are those of ``MONITOR_OPTIONS``."""

    kinds: OptionText = ""
    filter: OptionText = MONITOR_OPTION["filter"].default
    report_interval_s: float = MONITOR_OPTION["report_interval_s"].default
    duration_s: float = MONITOR_OPTION["duration_s"].default
    log_file: PathText = MONITOR_OPTION["log_file"].default
    export_type: Word = MONITOR_OPTION["export_type"].default
    jsonl_rotate_lines: int = MONITOR_OPTION["jsonl_rotate_lines"].default
    jsonl_rotate_files: int = MONITOR_OPTION["jsonl_rotate_files"].default
    ship_records: bool = MONITOR_OPTION["ship_records"].default
    order: Optional[Word] = None
    """Name of the daemon's standing order that the session comes from; None: of a command."""

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> MonitorSettings:
        """Build from the fields a start command mentions. Raises UsageError."""
        return cls(**check_fields(MONITOR_OPTION, fields))

    def updated(self, fields: Mapping[str, Any]) -> MonitorSettings:
        """Return settings with the mentioned fields changed.

        Raises UsageError for a wrong value and for a field that can't change in a
        running session.
        """
        checked = check_fields(MONITOR_OPTION, fields)
        fixed = [
            MONITOR_OPTION[name].flag
            for name, value in checked.items()
            if not MONITOR_OPTION[name].updatable and value != getattr(self, name)
        ]
        if fixed:
            raise UsageError(
                f"{', '.join(fixed)} can't change while monitoring runs",
                "stop the session and start a new one",
            )
        if checked.get("filter") == "" and not self.kinds:
            checked.setdefault("kinds", format_kinds(self.active_kinds))
        return dataclasses.replace(self, **checked)

    @functools.cached_property
    def active_kinds(self) -> frozenset[ActivityKind]:
        """Kinds to collect: ``kinds``, else those the filter names, else Marker."""
        if self.kinds:
            return parse_kinds(self.kinds)
        return self.active_filter.kinds or frozenset({ActivityKind.Marker})

    @functools.cached_property
    def active_filter(self) -> Filter:
        """The parsed filter."""
        return Filter.parse(self.filter)

    def checked(self) -> MonitorSettings:
        """Return these settings as :meth:`from_fields` would. Raises UsageError.

        For settings of another process: the wire has only looked at their types.
        """
        return _checked(self)

    def with_kinds(self) -> MonitorSettings:
        """Return these settings with ``kinds`` spelled out, also where the filter names them."""
        return dataclasses.replace(self, kinds=format_kinds(self.active_kinds))

    def as_fields(self) -> dict[str, Any]:
        """Return plain values for the wire and for ``status``."""
        return dataclasses.asdict(self.with_kinds())


@functools.lru_cache(64)
def _checked(settings: MonitorSettings) -> MonitorSettings:
    """See :meth:`MonitorSettings.checked`. All ranks of a job begin with the same settings."""
    defaults = dataclasses.asdict(MonitorSettings())
    given = dataclasses.asdict(settings)
    return MonitorSettings.from_fields(
        {name: value for name, value in given.items() if value != defaults[name]}
    )


@dataclass(frozen=True)
class SessionInfo:
    """One npu-monitor run in one process. ``start_ns`` is wall clock."""

    session_id: str
    process: ProcessInfo
    settings: MonitorSettings
    start_ns: Nanoseconds
    owner: str = ""
    """Whose it is, as the daemon knows it: "uid 1000" or "key NAME"; empty outside a daemon."""


@dataclass(frozen=True)
class Counts:
    """Records of one session so far, per kind name; drops per stage."""

    received: CountsByKind = field(default_factory=dict)
    """Decoded from buffers."""
    kept: CountsByKind = field(default_factory=dict)
    """Passed the filter."""
    untimed: CountsByKind = field(default_factory=dict)
    """Kept, but without usable times, and so left out of statistics."""
    drops: Drops = field(default_factory=dict)


@dataclass(frozen=True)
class Gap:
    """A span of a session in which records were lost. ``records`` per kind name, None: unknown."""

    stage: Union[DropStage, Word]
    """A text where a newer side, or a converted file, names a stage that is not known here."""
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    records: Optional[CountsByKind]
    reason: Sentence = ""


LOST_END = "lost"
"""Reason of an end that the daemon wrote because the process vanished. It may come back."""
REPLACED_END = "replaced"
"""Reason of an end that the daemon wrote because another program runs in the process (execv)."""


@dataclass(frozen=True)
class SessionEnd:
    """How a session ended. ``end_ns`` is wall clock; reason "lost": the process vanished."""

    end_ns: Nanoseconds
    reason: Sentence
    counts: Counts = field(default_factory=Counts)
