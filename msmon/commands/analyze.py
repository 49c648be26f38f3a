"""``msmon analyze``: questions about exported files."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

import click

from msmon.analysis.slow_ranks import SlowRanks, slow_ranks
from msmon.analysis.steps import StepSource
from msmon.commands.signals import ended_by_signals
from msmon.conversion.sources.search import find_sources
from msmon.errors import MsmonError, SinkError
from msmon.insight.verdict import Verdict
from msmon.insight.wording import moment_text, ranks_text
from msmon.logs import escaped


@click.group("analyze")
def analyze() -> None:
    """Ask exported files: which rank is slow, why, and since when.

    The files of all ranks go in together, whatever node they were written on.

    \b
      msmon analyze slow-ranks out/
    """


@analyze.command("slow-ranks")
@click.argument(
    "paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path)
)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def slow_ranks_command(paths: tuple[Path, ...], as_json: bool) -> int:
    """Say which ranks are slow, why and since when, and what that costs the job.

    PATH is a DB or JSONL file, or a directory of them. Ranks are compared with those of the same
    position only: a pipeline's last stage may have more work without anybody being slow. To find
    out who waits for whom, Communication must have been recorded; steps are taken from step
    markers, or inferred from an operator that comes once per step. A rank of which nothing could
    be read is named, and so is what that leaves open.

    Temporary files take about a tenth of the size of the exports; TMPDIR says where.

    \b
    All ranks of a job:
      msmon analyze slow-ranks out/
    The directories of two nodes, for a script:
      msmon analyze slow-ranks node1/out node2/out --json
    """
    with ended_by_signals():
        answer = _analyzed(paths)
    if as_json:
        click.echo(json.dumps(answer.as_json()))
    else:
        _show(answer)
    return 0


def _analyzed(paths: tuple[Path, ...]) -> SlowRanks:
    sources = find_sources(paths)
    try:
        if not sys.stderr.isatty():
            return slow_ranks(sources)
        size_bytes = sum(source.size_bytes for source in sources)
        bar: Any = click.progressbar(length=size_bytes, label="reading", file=sys.stderr)
        with bar:
            return slow_ranks(sources, bar.update)
    except MsmonError as error:  # its sentences may quote a forged file
        error.message, error.next_step = escaped(error.message), escaped(error.next_step)
        raise
    except OSError as error:
        raise SinkError(
            f"can't analyze: {error.strerror or error}",
            "temporary files need room; set TMPDIR to a directory that has it",
        ) from error


def _show(answer: SlowRanks) -> None:
    steps = {
        StepSource.MARKERS: f"{answer.steps:,} steps",
        StepSource.INFERRED: f"{answer.steps:,} steps, inferred from {answer.step_anchor}",
        StepSource.NONE: "steps unknown: no step markers, and no operator that comes once a step",
    }[answer.steps_from]
    click.echo(escaped(f"ranks {ranks_text(answer.ranks)}; {steps}; {answer.windows} windows"))
    if not answer.verdicts:
        click.echo("No rank is to blame for anything that costs 1 % of a step or more.")
    for verdict in answer.verdicts:
        click.echo("")
        _show_verdict(verdict)
    if answer.minor:
        click.echo("\nBelow 1 % of a step:")
        for verdict in answer.minor:
            _wrapped(escaped(verdict.text), "  ")
    if answer.abstained:
        click.echo("\nNot judged:")
        for one in answer.abstained:
            who = f"ranks {ranks_text(one.ranks)}: " if one.ranks else ""
            _wrapped(escaped(f"{who}{one.reason}"), "  ")
    for problem in answer.problems:
        click.echo(escaped(problem), err=True)


def _show_verdict(verdict: Verdict) -> None:
    over = "" if verdict.until_ns is None else f" It was over at {moment_text(verdict.until_ns)}."
    _wrapped(escaped(verdict.text + over), "")
    for line in verdict.evidence:
        _wrapped(escaped(line), "  ")
    click.echo(f"  trace: {escaped(verdict.next)}")


def _wrapped(text: str, indent: str) -> None:
    width = max(40, shutil.get_terminal_size().columns)
    click.echo(textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent + "  "))
