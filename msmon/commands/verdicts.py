"""``msmon verdicts``: present and recent verdicts, judged anew from what the daemons remember."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import click

from msmon.commands.asking.answers import terminal_safe
from msmon.commands.asking.connection import Connection, daemon_options
from msmon.commands.signals import ended_by_signals
from msmon.commands.watch.printing import reason_lines
from msmon.commands.watch.sight import first_words
from msmon.errors import BusError
from msmon.insight.wording import moment_text
from msmon.live.feed import Feed
from msmon.live.job_watch import JobWatch
from msmon.live.watcher import Watcher


@dataclass(frozen=True)
class _Answer:
    """The jobs that were judged, and why some daemons can't be asked."""

    jobs: list[JobWatch]
    problems: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """Return it as ``--json`` has it."""
        return {
            "verdicts": [
                {"job": watch.job, "present": present, **verdict.as_json()}
                for watch in self.jobs
                for present, verdicts in ((True, watch.judgement.verdicts), (False, watch.ended))
                for verdict in verdicts
            ],
            "abstained": [
                {"job": watch.job, "ranks": list(one.ranks), "reason": one.reason}
                for watch in self.jobs
                for one in watch.abstained
            ],
            "jobs": [
                {
                    "job": watch.job,
                    "windows": watch.windows,
                    "until_ns": watch.latest.end_ns if watch.latest is not None else None,
                    "problems": watch.problems,
                }
                for watch in self.jobs
            ],
            "daemons_not_asked": self.problems,
        }


@click.command()
@click.option("--job", "jobs", multiple=True, metavar="ID", help="Only this job. Repeatable.")
@daemon_options
def verdicts(connection: Connection, jobs: tuple[str, ...]) -> int:
    """List the verdicts that hold, and those that are over.

    Judges the windows that the daemons remember, the last 15 minutes unless their --recent-minutes
    says otherwise. What can't be judged is listed too, with the reason. The exit code is 0 whether
    there are verdicts or not.

    \b
    All nodes of a job; and for a script:
      msmon verdicts --host node1,node2 --job 4711
      msmon verdicts --json | jq '.verdicts[] | select(.present) | .text'
    """
    with ended_by_signals():
        answer = _judged(replace(connection, quiet=True), jobs)
    if connection.json:
        click.echo(json.dumps(answer.as_json()))
    else:
        for line in _lines(answer):
            click.echo(terminal_safe(line))
    return 0


def _judged(connection: Connection, names: tuple[str, ...]) -> _Answer:
    """Judge what the daemons have. Raises BusError if none of them can be asked."""
    watcher = Watcher()
    with Feed({host: one.endpoint for host, one in connection.each.items()}) as feed:
        feed.wait_for_all(connection.timeout_s)
        for _ in watcher.take(feed.poll()):
            pass
        problems = feed.problems
    if len(problems) == len(connection.each):
        daemon, text = next(iter(problems.items()))
        raise BusError(f"{daemon}: {text}" if daemon else text)
    return _Answer(
        [watch for name, watch in sorted(watcher.jobs.items()) if not names or name in names],
        problems,
    )


def _lines(answer: _Answer) -> Iterable[str]:
    for watch in answer.jobs:
        until = moment_text(watch.latest.end_ns) if watch.latest is not None else ""
        told = (
            f"{watch.windows} windows judged, until {until}" if until else "no window is whole yet"
        )
        yield f"job {watch.job}: {told}"
        for verdict in watch.judgement.verdicts:
            yield f"  present: {verdict.text}"
            yield from (f"  {line}" for line in reason_lines(verdict))
        for verdict in watch.ended:
            over = f" Over since {moment_text(verdict.until_ns)}." if verdict.until_ns else ""
            yield f"  over: {verdict.text}{over}"
        if not watch.judgement.verdicts and not watch.ended and until:
            yield "  no verdict"
        yield from (f"  {text}" for text in first_words(watch))
    if not answer.jobs:
        yield "the daemons remember no window of any such job; is it monitored? See msmon status"
    for daemon, problem in answer.problems.items():
        yield f"{f'daemon {daemon}' if daemon else 'the daemon'} can't be asked: {problem}"
