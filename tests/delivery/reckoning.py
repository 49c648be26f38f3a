"""Compares what a rank recorded with what its files hold.

For each kind: records = rows in the file + drops that the file counts. Nothing is there twice.
For windows: records = sum of the operators + those in windows that are counted as lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from exports import Database, JsonLines, WindowLines
from job import Rank

from msmon.sessions import DropStage

_BEFORE_WINDOWS = ("slots", "decode", "windows")
"""Stages that lose records before they come into a written window. What later stages lose is in
one."""


@dataclass
class Reckoning:
    """What happened to the records of one rank, all kinds together."""

    rank: Rank
    recorded: int
    written: int
    dropped: dict[str, int]
    """Stage that dropped records → their number."""
    in_windows: int
    """Records in the windows that were written, without markers."""
    problems: list[str]


def reckon(rank: Rank, database: Database, lines: JsonLines, windows: WindowLines) -> Reckoning:
    """Compare the records of a rank with those in its files and those counted there as dropped."""
    recorded, written = rank.recorded(), database.counts()
    dropped: Counter[str] = Counter()
    by_kind: Counter[str] = Counter()
    problems = []
    for stage, kind, count, reason in database.gaps():
        if stage == DropStage.WINDOWS:
            continue  # the records themselves are in the database
        if count is None:
            problems.append(f"an unknown number was lost: {stage}, {reason}")
        else:
            dropped[stage] += count
            by_kind[kind] += count
    if written + by_kind != Counter(recorded):
        problems.append(f"recorded {recorded}, written {written}, dropped {by_kind}")
    if database.doubled():
        problems.append(f"{database.doubled()} kernels are in the database twice")
    problems += _reckon_lines(recorded, lines)
    problems += _reckon_windows(recorded, windows)
    label = f"rank {rank.rank} (pid {rank.pid}): "
    return Reckoning(
        rank,
        sum(recorded.values()),
        sum(written.values()),
        dict(dropped),
        sum(_without_markers(windows.counts()).values()),
        [label + problem for problem in problems],
    )


def _reckon_lines(recorded: dict[str, int], lines: JsonLines) -> list[str]:
    """Return what is wrong in the JSONL files.

    Markers are not compared, because these files don't hold a marker without its counterpart.
    """
    total = lines.counts()
    for gap in lines.gaps():
        if gap["stage"] == DropStage.WINDOWS:
            continue
        if gap["records"] is None:
            return [f"JSONL: an unknown number was lost: {gap['stage']}, {gap['reason']}"]
        total.update(gap["records"])
    del total["Marker"]
    expected = {kind: count for kind, count in recorded.items() if kind != "Marker"}
    return [] if total == expected else [f"JSONL: recorded {expected}, found {dict(total)}"]


def _reckon_windows(recorded: dict[str, int], windows: WindowLines) -> list[str]:
    """Return what is wrong in the windows. Of markers they hold ranges, so these are left out."""
    total = windows.counts()
    for gap in windows.gaps:
        if gap["stage"] in _BEFORE_WINDOWS:
            if gap["records"] is None:
                return [f"windows: an unknown number was lost: {gap['stage']}, {gap['reason']}"]
            total.update(gap["records"])
    expected, found = _without_markers(recorded), _without_markers(total)
    return [] if found == expected else [f"windows: recorded {expected}, found {found}"]


def _without_markers(counts: Mapping[str, int]) -> dict[str, int]:
    return {kind: count for kind, count in counts.items() if count and kind != "Marker"}
