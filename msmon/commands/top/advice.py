"""What to do where something can't be seen, as sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from msmon.bus.rows import StatusRow
from msmon.bus.words import GONE, ProcessState
from msmon.commands.asking.answers import process_name
from msmon.commands.top.model import Model
from msmon.insight.wording import ranks_text

MONITOR_COMMAND = "msmon npu-monitor start --kind Kernel,Communication --report-interval-s 10"

COLLECTING = frozenset(
    {
        ProcessState.MONITORING,
        ProcessState.STARTING,
        ProcessState.PAUSED,
        ProcessState.TRACING,
        ProcessState.SILENT,
    }
)
"""States in which windows come, or will come again."""

NOT_ASKED_YET = "Asking the daemons …"


def advice(
    model: Model,
    rows: Optional[Sequence[StatusRow]],
    states_problem: str,
    feed_problems: Mapping[str, str],
) -> Model:
    """Return the model with what keeps something from being seen.

    ``rows`` is None while no daemon has answered; ``states_problem`` says why, or which does not.
    """
    found = list(model.problems)
    message = states_problem.partition("; ")[0]
    if states_problem:
        found.append(states_problem)
    found += [
        f"{daemon}: {text}" if daemon else text
        for daemon, text in feed_problems.items()
        if not (message and text.startswith(message))
    ]
    if rows is not None:
        found += _of_processes(model, [row for row in rows if row.state not in GONE])
    elif not found:
        found.append(NOT_ASKED_YET)
    return dataclasses.replace(model, problems=tuple(found))


def _of_processes(model: Model, rows: Sequence[StatusRow]) -> Iterator[str]:
    if not rows:
        if not model.jobs:
            yield (
                "No process is registered. Start the job with: msmon run torchrun … train.py "
                "(msmon doctor says why one is missing)"
            )
        return
    idle = [row for row in rows if row.state not in COLLECTING and row.state != "waiting"]
    collecting = [row for row in rows if row.state in COLLECTING]
    if not collecting:
        yield f"{_who(rows)}: not monitored. Start it with: {MONITOR_COMMAND}"
    elif not any(job.monitored for job in model.jobs):
        seconds = max((row.settings.report_interval_s for row in collecting if row.settings),
                      default=0.0)  # fmt: skip
        after = f" of {seconds:g} s" if seconds else ""
        yield f"Monitored, and the first windows come after the report interval{after}."
    elif idle:
        yield f"{_who(idle)}: not monitored. Start it with: {MONITOR_COMMAND}"
    by_problem: dict[str, list[StatusRow]] = {}
    for row in rows:
        if row.problem:
            by_problem.setdefault(row.problem, []).append(row)
    for problem, having in by_problem.items():
        yield f"{_who(having)}: {problem}"


def _who(rows: Sequence[StatusRow]) -> str:
    """Return "4 processes (ranks 0-3)", or the name of the only one."""
    if len(rows) == 1:
        return process_name(rows[0])
    ranks = [row.rank for row in rows if row.rank >= 0]
    named = f" (ranks {ranks_text(ranks)})" if len(ranks) == len(rows) else ""
    return f"{len(rows)} processes{named}"
