"""Notices as people read them, and as one JSON object per line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import click

from msmon.commands.asking.answers import terminal_safe
from msmon.commands.watch.notices import Note, Notice, Told, TracedRank
from msmon.insight.verdict import Verdict
from msmon.insight.wording import moment_text


class Printer:
    """Writes notices to stdout, and notes to stderr; with ``as_json`` both to stdout.

    Job, host and operator names come from jobs, so nothing of them may move the cursor.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def notice(self, notice: Notice) -> None:
        """Write what is told of a verdict."""
        if self._as_json:
            click.echo(json.dumps(notice.as_json()))
            return
        for line in notice_lines(notice):
            click.echo(terminal_safe(line))

    def note(self, note: Note) -> None:
        """Write what is no verdict."""
        time_ns = time.time_ns() if note.time_ns is None else note.time_ns
        if self._as_json:
            click.echo(json.dumps(
                {"change": "note", "about": note.about, "time_ns": time_ns, "text": note.text}
            ))  # fmt: skip
            return
        about = f"{note.about}: " if note.about else ""
        click.echo(terminal_safe(f"{moment_text(time_ns)} {about}{note.text}"), err=True)


def notice_lines(notice: Notice) -> Iterator[str]:
    """Yield the lines of a notice: a headline, and what belongs to it two spaces in."""
    verdict = notice.verdict
    yield f"{moment_text(notice.time_ns)} job {notice.job}: {notice.told}: {verdict.text}"
    if notice.told is Told.CLEARED and verdict.until_ns is not None:
        yield f"  until {moment_text(verdict.until_ns)}"
    if notice.told not in (Told.CLEARED, Told.TRACED):
        yield from reason_lines(verdict)
    for one in notice.trace:
        yield from trace_lines(one)


def reason_lines(verdict: Verdict) -> Iterator[str]:
    """Yield what a verdict rests on, and the command that goes deeper."""
    for line in verdict.evidence:
        yield f"  {line}"
    yield f"  next: {verdict.next}"


def trace_lines(one: TracedRank) -> Iterator[str]:
    """Yield what became of the trace of a rank, and its files."""
    yield f"  trace of rank {one.rank} ({one.host}): {'ok' if one.ok else 'failed'}: {one.text}"
    for path in one.files:
        yield f"    {one.host}:{path}"
