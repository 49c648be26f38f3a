"""What ``msmon top --once`` prints: the whole model as text, or as one line of JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from msmon.bus.codec import plain
from msmon.commands.asking.answers import sentence
from msmon.commands.top.columns import COLUMNS, Level, TopRow
from msmon.commands.top.details import group_rows, operators_of
from msmon.commands.top.model import ALL_RANKS, JobRow, Model, RankRow
from msmon.commands.top.screen.drawing import table_lines
from msmon.commands.top.screen.overlays import verdict_lines
from msmon.commands.top.screen.view import rank_name

RANKS_WITH_OPERATORS = 3
"""So many ranks of a job are shown with their operators."""


def print_text(model: Model, console: Console, operators: int) -> None:
    """Print verdicts, jobs and ranks, and ``operators`` of the ranks that are worth a look."""
    width = console.width
    lines = [*verdict_lines(model, width), Text()]
    if model.jobs:
        lines += _table(Level.JOBS, model.jobs, width)
    for job in model.jobs:
        lines += _headed(f"{job.name}: groups", Level.GROUPS, group_rows(model, job.key)[1:], width)
        lines += _headed(f"{job.name}: ranks", Level.RANKS, model.ranks[job.key], width)
        for rank in worth_a_look(model.ranks[job.key]) if operators else []:
            rows = operators_of(model, job.key, rank.key)[:operators]
            title = f"{job.name}: operators of {rank_name(model, job.key, rank.key)}"
            lines += _headed(title, Level.OPERATORS, rows, width)
    for line in lines:
        line.rstrip()
        console.print(line, soft_wrap=True)


def worth_a_look(rows: Sequence[RankRow]) -> list[RankRow]:
    """Return the ranks that a verdict names, else the one with the slowest work of its own."""
    measured = [row for row in rows if row.age_s is not None]
    blamed = [row for row in measured if row.verdict]
    if blamed:
        return blamed[:RANKS_WITH_OPERATORS]
    return sorted(measured, key=lambda row: -(row.work or 0.0))[:1]


def _table(level: Level, rows: Sequence[TopRow], width: int) -> list[Text]:
    return table_lines(COLUMNS[level], rows, width)


def _headed(title: str, level: Level, rows: Sequence[TopRow], width: int) -> Iterator[Text]:
    if rows:
        yield Text()
        yield Text(sentence(title), style="bold")
        yield from _table(level, rows, width)


def as_json(model: Model, operators: int) -> str:
    """Return the model as one line of JSON. What is not known is null."""
    return json.dumps(
        {
            "time_ns": model.now_ns,
            "daemons": model.daemons,
            "problems": list(model.problems),
            "verdicts": [{"job": one.job, **one.verdict.as_json()} for one in model.verdicts],
            "ended": [{"job": one.job, **one.verdict.as_json()} for one in model.ended],
            "abstained": [
                {"job": one.job, **dataclasses.asdict(one.abstained)} for one in model.abstained
            ],
            "jobs": [_job(model, job, operators) for job in model.jobs],
        },
        default=plain,
    )


def _job(model: Model, job: JobRow, operators: int) -> dict[str, Any]:
    groups = [row for row in group_rows(model, job.key) if row.key != ALL_RANKS]
    return {
        **_fields(job),
        "groups": [_fields(row) for row in groups],
        "ranks": [
            {
                **_fields(row),
                "operators": [
                    _fields(one) for one in operators_of(model, job.key, row.key)[:operators]
                ],
            }
            for row in model.ranks[job.key]
        ],
    }


def _fields(row: Any) -> dict[str, Any]:
    return {
        item.name: getattr(row, item.name)
        for item in dataclasses.fields(row)
        if item.name not in ("key", "job")
    }
