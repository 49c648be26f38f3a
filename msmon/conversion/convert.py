"""A conversion: move the records of all sources to the target, and say what became of them."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msmon.conversion.clocks import ClockDifference, hosts_of, measured_differences
from msmon.conversion.sources.aligned import AlignedSource
from msmon.conversion.sources.source import Source
from msmon.conversion.targets.target import Target
from msmon.errors import SinkError


@dataclass
class Report:
    """What a conversion did."""

    files: list[Path] = field(default_factory=list)
    """Files made."""
    records: dict[str, int] = field(default_factory=dict)
    """Records moved, per kind."""
    skipped: int = 0
    """Parts of the input that could not be read."""
    unread: int = 0
    """Processes of which nothing could be read."""
    left_out: int = 0
    """Records without a place in the format."""
    untimed: int = 0
    """Records left out because their times are none."""
    unmeasured: int = 0
    """Records written, but for that reason without a duration."""
    problems: list[str] = field(default_factory=list)
    """Sentences about what could not be read; they may quote the input."""
    clocks: list[ClockDifference] = field(default_factory=list)
    """Clocks of the hosts, where several were compared."""
    clocks_aligned: bool = False
    """Whether the times of each host were moved by the difference of its clock."""


def compare_clocks(sources: Sequence[Source]) -> list[ClockDifference]:
    """Return how the clocks of the sources' hosts differ; nothing for a single host.

    The sources are read and can't be converted after it. Raises SinkError.
    """
    if len(hosts_of(sources)) < 2:
        return []
    try:
        return measured_differences(sources)
    except _FAILURES as error:
        raise _explained(error) from error


def aligned(sources: Sequence[Source], clocks: Sequence[ClockDifference]) -> list[Source]:
    """Return the sources with all times as the clock of the reference host would show them.

    Hosts whose difference can't be measured keep their times.
    """
    ahead_ns = {item.host: item.ahead_ns or 0 for item in clocks}
    return [
        AlignedSource(source, -ahead_ns[source.process.host])
        if ahead_ns.get(source.process.host)
        else source
        for source in sources
    ]


def convert(
    sources: Sequence[Source], target: Target, advance: Callable[[int], None] = lambda size: None
) -> Report:
    """Move all records; ``advance`` is told how many more bytes of input were read.

    Raises SinkError when nothing at all could be read or the target fails, UsageError when it
    would replace an input. No unfinished file is left then.
    """
    report = Report()
    try:
        for source in sources:
            _convert_source(source, target, advance, report)
        if not report.records and report.skipped:
            raise SinkError(
                f"nothing could be read: {report.skipped} damaged parts",
                "; ".join(report.problems) or "are these files that msmon or msMonitor exported?",
            )
        report.files = target.finish()
    except _FAILURES as error:
        target.discard()
        raise _explained(error) from error
    except BaseException:
        target.discard()
        raise
    report.left_out = target.left_out
    report.untimed, report.unmeasured = target.untimed, target.unmeasured
    return report


_FAILURES = (OSError, sqlite3.Error, ValueError, MemoryError)
"""What reading or writing a file may raise where the place that does it has no better word."""


def _explained(error: Exception) -> SinkError:
    if isinstance(error, MemoryError):
        return SinkError("can't convert: not enough memory", "convert fewer files at once")
    if isinstance(error, OSError):
        next_step = "free some space, or choose another --out" if error.errno else ""
        return SinkError(f"can't convert: {error}", next_step)
    return SinkError(f"can't convert: {error}", "convert the files one by one to find the cause")


def _convert_source(
    source: Source, target: Target, advance: Callable[[int], None], report: Report
) -> None:
    batches = source.batches(advance)
    first = next(batches, None)
    if first is not None or not source.skipped:
        target.begin(source)
        for batch in itertools.chain([first] if first is not None else [], batches):
            target.write(batch)
            name = batch.kind.name
            report.records[name] = report.records.get(name, 0) + len(batch)
        target.end(source)
    else:
        report.unread += 1
    report.skipped += source.skipped
    report.problems += [f"{source.paths[0]}: {problem}" for problem in source.problems]
