"""Waiting for traces: one line per change in a process, then what each has written."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Union

import click

from msmon.bus.messages import Message, Reply, Selection, StatusRequest
from msmon.bus.rows import AnswerRow, MissingRow, StatusRow, TraceRow, outcome_of
from msmon.bus.words import FINISHED, GONE, TraceState
from msmon.commands.asking.answers import (
    as_json,
    in_rank_order,
    process_name,
    sentence,
    show_row,
)
from msmon.commands.asking.connection import Connection
from msmon.commands.asking.trace_text import outcome_text, progress_text
from msmon.errors import BusError

POLL_S = 0.3
AWAY_LIMIT_S = 60.0
"""A daemon may be away for so long while a trace is waited for."""


TraceResult = Union[AnswerRow, MissingRow]


def wait_for_traces(reply: Reply, connection: Connection) -> int:
    """Wait until every trace that ``reply`` has accepted is finished; return the exit code.

    0 only when all processes asked for have captured all steps and written their files.
    """
    say = _say_nothing if connection.json else click.echo
    results = follow_traces(reply, connection.request, say)
    if connection.json:
        final = dataclasses.replace(reply, outcome=outcome_of(results), rows=[*results])
        click.echo(as_json(final))
    else:
        for row in results:
            show_row(row)
        if reply.text:
            click.echo(f"msmon: {reply.text}", err=True)
    return 0 if all(row.ok for row in results) else 1


def follow_traces(
    reply: Reply,
    request: Callable[[Message], Reply],
    say: Callable[[str], None],
    goes_on: Callable[[], bool] = lambda: True,
) -> list[TraceResult]:
    """Ask for the traces that ``reply`` has accepted until all are finished; return the results.

    ``say`` gets a line per change. Once ``goes_on`` says no, those that are not finished are left
    out. Raises BusError if the daemon stays away.
    """
    progress = _Progress(reply.answer_rows, say)
    seen_s = time.monotonic()
    while not progress.finished and goes_on():
        try:
            rows = request(StatusRequest(Selection(progress.pids))).status_rows
        except BusError:
            if time.monotonic() - seen_s > AWAY_LIMIT_S:
                raise
        else:
            seen_s = time.monotonic()
            progress.take(rows)
        time.sleep(0.0 if progress.finished else POLL_S)
    return [*progress.results(), *(row for row in reply.answer_rows if not row.ok)]


def _say_nothing(_: str) -> None:
    pass


class _Progress:
    """What is known of each accepted trace, by its id. Says a line when that changes."""

    def __init__(self, rows: Iterable[TraceResult], say: Callable[[str], None]) -> None:
        self._say_line = say
        self._accepted = {
            row.trace_id: row
            for row in rows
            if isinstance(row, AnswerRow) and row.ok and row.trace_id
        }
        self._results: dict[str, AnswerRow] = {}
        self._lines: dict[str, str] = {}
        for trace_id, row in self._accepted.items():
            self._say(trace_id, f"accepted: {row.text}")

    @property
    def pids(self) -> list[int]:
        return [row.pid for row in self._accepted.values()]

    @property
    def finished(self) -> bool:
        return len(self._results) == len(self._accepted)

    def results(self) -> list[AnswerRow]:
        return in_rank_order(self._results.values())

    def take(self, rows: Iterable[StatusRow]) -> None:
        """Take a status; say what has changed."""
        by_process = {(row.host, row.pid): row for row in rows}
        for trace_id, accepted in self._accepted.items():
            if trace_id not in self._results:
                self._take_one(trace_id, by_process.get((accepted.host, accepted.pid)))

    def _take_one(self, trace_id: str, row: StatusRow | None) -> None:
        trace = row.trace if row is not None else None
        gone = row is None or row.state in GONE
        if row is not None and trace is not None and trace.trace_id == trace_id:
            if trace.state in FINISHED:
                self._finish(trace_id, trace)
            elif gone:
                reason = f"the process was {row.state} while its trace was {trace.state}"
                failed = dataclasses.replace(trace, state=TraceState.FAILED, reason=reason)
                self._finish(trace_id, failed)
            else:
                self._say(trace_id, progress_text(trace, row.step_age_s))
        elif gone:
            self._finish_unknown(
                trace_id, "the process is gone: nobody knows what became of the trace"
            )
        elif trace is not None and trace.trace_id:
            text = "another trace has begun since: what became of this one is not known"
            self._finish_unknown(trace_id, text)

    def _finish_unknown(self, trace_id: str, reason: str) -> None:
        self._finish(trace_id, TraceRow(TraceState.FAILED, trace_id, reason=reason))

    def _finish(self, trace_id: str, trace: TraceRow) -> None:
        text = outcome_text(trace)
        self._results[trace_id] = dataclasses.replace(
            self._accepted[trace_id],
            ok=trace.state == TraceState.DONE and not trace.partial,
            text=text,
            next_step="",
            trace=trace,
            files=trace.files,
        )
        self._say(trace_id, text)

    def _say(self, trace_id: str, text: str) -> None:
        if self._lines.get(trace_id) != text:
            self._lines[trace_id] = text
            self._say_line(f"{process_name(self._accepted[trace_id])}: {sentence(text)}")
