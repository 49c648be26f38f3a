"""The columns of each table: what they show, and how wide a screen they need.

A value that is not known is None and shown as "-". It sorts to the end, whatever the direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from msmon.bus.words import GONE, ProcessState
from msmon.commands.asking.answers import terminal_safe
from msmon.commands.status.process_table import age_text, short_count
from msmon.commands.top.model import BandRow, GroupRow, JobRow, OperatorRow, RankRow
from msmon.insight.wording import ranks_text
from msmon.vocabulary import Vocabulary

UNKNOWN = "-"

SLOWER = 0.10
MUCH_SLOWER = 0.30
"""Changes from which a number is drawn in another colour; they are no verdict."""

BAR_CELLS = 24


class Level(Vocabulary):
    """What a table is about, from the outside in."""

    JOBS = "jobs"
    GROUPS = "groups"
    RANKS = "ranks"
    OPERATORS = "operators"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class TopColumn:
    """A column. ``value`` is what is sorted by, ``text`` what is shown.

    With ``stretch`` it takes what the others leave, shared with those that stretch too.
    """

    title: str
    width: int
    value: Callable[[Any], Any]
    text: Callable[[Any], str]
    from_width: int = 0
    """Columns of the screen from which on it is shown."""
    right: bool = True
    stretch: bool = False
    rises: bool = False
    """Sorted by it, the smallest comes first; else the largest, which is what one looks for."""
    style: Callable[[Any], str] = lambda row: ""


def duration_text(value_ns: Optional[float]) -> str:
    """Return a duration in at most seven characters: 12.3µs, 4.56ms, 1.20s."""
    if value_ns is None:
        return UNKNOWN
    for unit, size_ns in (("ns", 1), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)):
        value = value_ns / size_ns
        if value < 999.5 or unit == "s":
            digits = 0 if unit == "ns" or value >= 99.95 else 1 if value >= 9.995 else 2
            return f"{value:.{digits}f}{unit}"
    raise AssertionError


def share_text(share: Optional[float]) -> str:
    """Return 0.184 as "18.4%"."""
    return UNKNOWN if share is None else f"{share * 100:.1f}%"


def change_text(ratio: Optional[float]) -> str:
    """Return a ratio of 1.42 as "+42%"."""
    if ratio is None:
        return UNKNOWN
    text = f"{(ratio - 1) * 100:+.0f}%" if ratio < 10 else f"{ratio:.0f}x"
    return "0%" if text in ("+0%", "-0%") else text


def bytes_text(size_bytes: Optional[int]) -> str:
    """Return a power of two as "4M"."""
    if size_bytes is None:
        return UNKNOWN
    for unit in ("", "K", "M", "G"):
        if size_bytes < 1024:
            return f"{size_bytes}{unit}"
        size_bytes //= 1024
    return f"{size_bytes}T"


def count_text(count: Optional[float]) -> str:
    """Return a count in at most five characters."""
    if count is None:
        return UNKNOWN
    return f"{count:.1f}" if count < 100 and count != int(count) else short_count(round(count))


def _number_text(number: Optional[int]) -> str:
    return UNKNOWN if number is None else str(number)


def _change_style(ratio: Optional[float]) -> str:
    if ratio is None or ratio < 1 + SLOWER:
        return ""
    return "red" if ratio >= 1 + MUCH_SLOWER else "yellow"


def _of(name: str) -> Callable[[Any], Any]:
    return lambda row: getattr(row, name)


def _words(title: str, name: str, width: int, stretch: bool = False, **rest: Any) -> TopColumn:
    def text(row: Any) -> str:
        return terminal_safe(getattr(row, name)) or UNKNOWN

    value = _of(name)
    return TopColumn(title, width, lambda row: value(row) or None, text, right=False,
                     stretch=stretch, rises=True, **rest)  # fmt: skip


def _measure(
    title: str, name: str, width: int, text: Callable[[Any], str], **rest: Any
) -> TopColumn:
    return TopColumn(title, width, _of(name), lambda row: text(getattr(row, name)), **rest)


def _change(title: str, name: str, width: int = 6, **rest: Any) -> TopColumn:
    return _measure(title, name, width, change_text,
                    style=lambda row: _change_style(getattr(row, name)), **rest)  # fmt: skip


def _verdict(width: int, **rest: Any) -> TopColumn:
    return _words("VERDICT", "verdict", width, stretch=True, style=lambda row: "bold red", **rest)


def _job_ranks(row: JobRow) -> str:
    return str(row.ranks) if row.world_size is None else f"{row.ranks}/{row.world_size}"


def _state_style(row: RankRow) -> str:
    if row.state in GONE:
        return "dim"
    styles = {ProcessState.FAILED: "red", ProcessState.SILENT: "yellow",
              ProcessState.TRACING: "cyan"}  # fmt: skip
    return styles.get(row.state, "")  # type: ignore[call-overload, no-any-return]


def _age_style(row: RankRow) -> str:
    """Draw attention to a process whose next window is overdue."""
    if row.age_s is None or row.window_s is None:
        return ""
    return "yellow" if row.age_s > 2 * row.window_s + 5 else ""


def _age(width: int = 4, **rest: Any) -> TopColumn:
    return _measure("AGE", "age_s", width, age_text, **rest)


def _bar(share: Optional[float], cells: int) -> str:
    """Return a bar of eighths of cells; a share of 1 fills all of them."""
    eighths = round((share or 0.0) * cells * 8)
    whole, rest = divmod(min(eighths, cells * 8), 8)
    return "█" * whole + ("" if not rest else " ▏▎▍▌▋▊▉"[rest])


JOB_COLUMNS = (
    _words("JOB", "name", 12, stretch=True),
    TopColumn("RANKS", 7, _of("ranks"), _job_ranks),
    _measure("MONITORED", "monitored", 9, str, from_width=90),
    _measure("HOSTS", "hosts", 5, str, from_width=90),
    _measure("STEP", "step", 8, _number_text, from_width=90),
    _measure("STEP TIME", "step_ns", 9, duration_text),
    _measure("EXPOSED", "exposed", 7, share_text),
    _measure("IDLE", "idle", 6, share_text),
    _measure("COST", "cost_percent", 6, lambda one: UNKNOWN if one is None else f"{one:.1f}%"),
    _age(),
    _verdict(11),
)

GROUP_COLUMNS = (
    _words("GROUP", "name", 16, stretch=True),
    TopColumn("RANKS", 12, _of("ranks"), lambda row: ranks_text(row.ranks) or UNKNOWN,
              right=False, stretch=True),
    TopColumn("OPERATIONS", 14, _of("operations"),
              lambda row: terminal_safe(", ".join(row.operations)) or UNKNOWN, right=False),
    _measure("PER STEP", "per_step", 8, count_text, from_width=100),
    _measure("MEAN", "mean_ns", 7, duration_text),
    _measure("SHORTEST", "shortest_ns", 8, duration_text),
    _measure("OF RANK", "last_rank", 7, _number_text),
    _measure("SHARE", "share", 6, share_text),
    _verdict(11, from_width=100),
)  # fmt: skip

RANK_COLUMNS = (
    _measure("RANK", "rank", 5, _number_text, rises=True),
    _words("HOST", "host", 9, stretch=True),
    _measure("PID", "pid", 8, str, from_width=100, rises=True),
    _measure("NPU", "device", 3, _number_text, rises=True),
    _words("STATE", "state", 10, from_width=100, style=_state_style),
    _measure("STEP", "step", 8, _number_text, from_width=90),
    _measure("STEP TIME", "step_ns", 9, duration_text),
    _change("PAST", "past", 5),
    _change("WORK", "work", 5),
    _measure("EXPOSED", "exposed", 7, share_text),
    _measure("IDLE", "idle", 6, share_text),
    _measure("BUSY", "busy", 6, share_text, from_width=100),
    TopColumn("AGE", 4, _of("age_s"), lambda row: age_text(row.age_s), style=_age_style),
    _verdict(11),
)

OPERATOR_COLUMNS = (
    _words("OPERATOR", "name", 20, stretch=True),
    _words("KIND", "kind", 13, from_width=100),
    _words("GROUP", "group", 12, from_width=120, stretch=True),
    _measure("BYTES", "size_bytes", 5, bytes_text, from_width=90),
    _measure("COUNT", "count", 6, count_text),
    _measure("PER STEP", "per_step", 8, count_text, from_width=100),
    _measure("TOTAL", "total_ns", 7, duration_text),
    _measure("SHARE", "share", 6, share_text),
    _measure("P50", "p50_ns", 7, duration_text),
    _measure("P95", "p95_ns", 7, duration_text),
    _measure("MAX", "max_ns", 7, duration_text, from_width=100),
    _change("PAST", "past"),
    _change("PEERS", "peers"),
)

BAND_COLUMNS = (
    _measure("FROM", "low_ns", 8, duration_text, rises=True),
    _measure("TO", "high_ns", 8, duration_text, rises=True),
    _measure("COUNT", "count", 7, count_text),
    _measure("SHARE", "share", 6, share_text),
    TopColumn("", BAR_CELLS, _of("share"), lambda row: _bar(row.share, BAR_CELLS), right=False,
              style=lambda row: "cyan"),
    _measure("PEERS", "peers", 6, share_text),
    TopColumn("", BAR_CELLS, _of("peers"), lambda row: _bar(row.peers, BAR_CELLS), right=False,
              from_width=100, style=lambda row: "dim"),
)  # fmt: skip

COLUMNS: Mapping[Level, Sequence[TopColumn]] = {
    Level.JOBS: JOB_COLUMNS,
    Level.GROUPS: GROUP_COLUMNS,
    Level.RANKS: RANK_COLUMNS,
    Level.OPERATORS: OPERATOR_COLUMNS,
    Level.HISTOGRAM: BAND_COLUMNS,
}

TopRow = Union[JobRow, GroupRow, RankRow, OperatorRow, BandRow]
