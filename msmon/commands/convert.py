"""``msmon convert``: exported files into other formats."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

from msmon.commands.signals import ended_by_signals
from msmon.conversion.clocks import FEWEST_COLLECTIVES, ClockDifference
from msmon.conversion.convert import Report, aligned, compare_clocks, convert
from msmon.conversion.sources.search import find_sources
from msmon.conversion.sources.source import Source
from msmon.conversion.targets.choosing import FORMATS, TRACE_NAME, choose_target
from msmon.conversion.targets.target import Target
from msmon.errors import MsmonError, UsageError
from msmon.logs import escaped


@click.command("convert")
@click.argument("inputs", nargs=-1, required=True, metavar="IN...", type=click.Path(path_type=Path))
@click.option(
    "--to", "target_format", required=True, type=click.Choice(FORMATS), help="Format of the output."
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Directory for db, jsonl, parquet and several workbooks (default: the current one); "
    f"file for perfetto (default: {TRACE_NAME}) and for a single workbook.",
)
@click.option(
    "--align-clocks",
    is_flag=True,
    help="Move the times of each host by the measured difference of its clock to that of the "
    "lowest rank's host.",
)
@click.option("--json", "as_json", is_flag=True, help="Report in JSON.")
def convert_command(
    inputs: tuple[Path, ...],
    target_format: str,
    out: Path | None,
    align_clocks: bool,
    as_json: bool,
) -> int:
    """Convert exported files: DB and JSONL files, or directories of them.

    Rotated JSONL files of a session are taken together. Damaged parts are skipped and
    counted; where nothing of a file can be read, the others are converted and the exit code
    is 1. perfetto puts all processes into one trace for https://ui.perfetto.dev or
    chrome://tracing, and leaves out records whose times are no times of a clock; they are
    counted, and the exit code is 1. It says how the clocks of several hosts differ, measured
    by the collectives that their ranks share. parquet needs pip install pyarrow.

    \b
    All ranks of a job in one trace:
      msmon convert out/ --to perfetto -o job.json
    One rank as a workbook:
      msmon convert out/msmonitor_4711_20260101120000000_0.db --to xlsx
    """
    with ended_by_signals():
        report = _converted(inputs, target_format, out, align_clocks)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), default=str))
    else:
        _show(report)
    return 1 if report.unread or report.untimed else 0


def _converted(
    inputs: tuple[Path, ...], target_format: str, out: Path | None, align_clocks: bool
) -> Report:
    sources = find_sources(inputs)
    clocks: list[ClockDifference] = []
    try:
        if align_clocks or target_format == "perfetto":
            clocks = compare_clocks(find_sources(inputs))  # a source is read once
        if align_clocks:
            sources = aligned(sources, clocks)
        target = _target(target_format, out, sources)
        report = _with_progress_bar(sources, target, target_format)
    except MsmonError as error:  # its sentences may quote a forged file
        error.message, error.next_step = escaped(error.message), escaped(error.next_step)
        raise
    report.clocks, report.clocks_aligned = clocks, align_clocks
    return report


def _target(target_format: str, out: Path | None, sources: list[Source]) -> Target:
    try:
        return choose_target(target_format, out, sources)
    except OSError as error:
        raise UsageError(f"--out: {error.strerror}: {error.filename}") from error


def _with_progress_bar(sources: list[Source], target: Target, target_format: str) -> Report:
    if not sys.stderr.isatty():
        return convert(sources, target)
    size_bytes = sum(source.size_bytes for source in sources)
    label = f"converting to {target_format}"
    bar: Any = click.progressbar(length=size_bytes, label=label, file=sys.stderr)
    with bar:
        return convert(sources, target, bar.update)


def _show(report: Report) -> None:
    for path in report.files:
        click.echo(click.format_filename(path))
    counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report.records.items()))
    click.echo(f"records: {counts or 'none'}", err=True)
    if report.left_out:
        click.echo(f"left out, as they have no place in this format: {report.left_out:,}", err=True)
    if report.untimed:
        click.echo(
            f"left out, as their times are no times of a clock: {report.untimed:,}", err=True
        )
    if report.unmeasured:
        text = "without a duration, as their times are no times of a clock"
        click.echo(f"{text}: {report.unmeasured:,}", err=True)
    if report.skipped:
        click.echo(f"skipped damaged parts: {report.skipped:,}", err=True)
    for clock in report.clocks:
        click.echo(escaped(_clock_text(clock, report.clocks_aligned)), err=True)
    for problem in report.problems:
        click.echo(escaped(problem), err=True)


def _clock_text(clock: ClockDifference, aligned: bool) -> str:
    name = f"clock of {clock.host}"
    if clock.ahead_ns is None:
        return (
            f"{name}: can't be compared with that of {clock.reference}, for they share fewer than "
            f"{FEWEST_COLLECTIVES} collectives within steps, or the ends of these scatter too "
            "widely; its times are as they were recorded"
        )
    side = "behind" if clock.ahead_ns < 0 else "ahead of"
    measured = (
        f"{name}: {abs(clock.ahead_ns) / 1e6:.3f} ms {side} that of {clock.reference}, by "
        f"{clock.collectives} shared collectives, half of them within "
        f"{clock.spread_ns / 1e6:.3f} ms"
    )
    if aligned:
        return f"{measured}; its times were moved by {-clock.ahead_ns / 1e6:+.3f} ms"
    return f"{measured}; --align-clocks corrects it"
