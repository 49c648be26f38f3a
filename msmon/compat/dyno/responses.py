"""Answers as dyno prints them, on one line that begins with ``response = ``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from msmon.bus.messages import Reply
from msmon.bus.rows import TraceRow
from msmon.bus.words import GONE, ProcessState, TraceState
from msmon.commands.asking.answers import process_name, sentence

UNINITIALIZED, IDLE, RUNNING, READY = "Uninitialized", "Idle", "Running", "Ready"
TRACE_STATES: Mapping[str, str] = {TraceState.RUNNING: RUNNING, TraceState.READY: READY}


def show(answer: Mapping[str, Any]) -> None:
    """Print an answer; others look for the text between the first and the last brace."""
    click.echo(f"response = {json.dumps(answer, sort_keys=True)}")


def show_matched(reply: Reply) -> list[int]:
    """Print what became of a command, and why on stderr; return the pids that carry it out."""
    accepted = [row.pid for row in reply.answer_rows if row.ok and row.pid is not None]
    if accepted:
        show(
            {
                "activityProfilersBusy": len(reply.answer_rows) - len(accepted),
                "activityProfilersTriggered": accepted,
                "commandStatus": "effective",
                "eventProfilersBusy": 0,
                "eventProfilersTriggered": [],
                "processesMatched": [row.pid for row in reply.answer_rows if row.pid is not None],
            }
        )
    else:
        show({"commandStatus": "ineffective"})
    for row in reply.answer_rows:
        if not row.ok:
            click.echo(f"msmon-dyno: {process_name(row)}: {sentence(row.text)}", err=True)
    if reply.text or (not accepted and reply.next_step):
        click.echo(f"msmon-dyno: {sentence(f'{reply.text} {reply.next_step}'.strip())}", err=True)
    return accepted


def show_status(reply: Reply) -> None:
    """Print one state for all processes, as dyno knows it: what any of them does."""
    rows = [row for row in reply.status_rows if row.state not in GONE]
    traces = [row.trace or TraceRow() for row in rows]
    states = [TRACE_STATES.get(trace.state, IDLE) for trace in traces]
    answer: dict[str, Any] = {
        "current_step": max((row.step for row in rows), default=-1),
        "npumonitor": _strongest(
            [RUNNING if row.state == ProcessState.MONITORING else IDLE for row in rows]
        ),
        "nputrace": _strongest(states),
    }
    if answer["nputrace"] in (RUNNING, READY):
        first = next(t for t, state in zip(traces, states) if state == answer["nputrace"])
        answer["start_step"] = first.start_step
        answer["stop_step"] = first.stop_step
    show(answer)


def _strongest(states: Sequence[str]) -> str:
    return next((state for state in (RUNNING, READY, IDLE) if state in states), UNINITIALIZED)
