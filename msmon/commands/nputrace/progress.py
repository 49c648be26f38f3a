"""Waiting for traces: one line per change in a process, then what each has written."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

import click

from msmon.bus.messages import Reply, Selection, StatusRequest
from msmon.commands.answers import in_rank_order, process_name, sentence, terminal_safe
from msmon.commands.connection import Connection
from msmon.commands.trace_text import FINISHED, outcome_text, progress_text
from msmon.errors import BusError

POLL_S = 0.3
AWAY_LIMIT_S = 60.0
"""A daemon may be away for so long while a trace is waited for."""
GONE = ("lost", "ended")

Row = Mapping[str, Any]


def wait_for_traces(reply: Reply, connection: Connection) -> int:
    """Wait until every trace that ``reply`` has accepted is finished; return the exit code.

    0 only when all processes asked for have captured all steps and written their files.
    """
    quiet = connection.json
    progress = _Progress(reply.rows, quiet)
    seen_s = time.monotonic()
    while not progress.finished:
        try:
            rows = connection.request(StatusRequest(Selection(progress.pids))).rows
        except BusError:
            if time.monotonic() - seen_s > AWAY_LIMIT_S:
                raise
            rows = None
        if rows is not None:
            seen_s = time.monotonic()
            progress.take(rows)
        time.sleep(0.0 if progress.finished else POLL_S)
    rows = [*progress.results(), *(row for row in reply.rows if not row.get("ok"))]
    succeeded = all(row["ok"] for row in rows)
    if quiet:
        outcome = "ok" if succeeded else "partial" if any(row["ok"] for row in rows) else "failed"
        final = dataclasses.replace(reply, outcome=outcome, rows=rows)
        click.echo(json.dumps(dataclasses.asdict(final)))
    else:
        _show(rows, reply.text)
    return 0 if succeeded else 1


class _Progress:
    """What is known of each trace, by the id that its process gave it."""

    def __init__(self, rows: Iterable[Row], quiet: bool) -> None:
        self._quiet = quiet
        self._accepted = {row["trace_id"]: row for row in rows if row.get("ok")}
        self._results: dict[str, dict[str, Any]] = {}
        self._lines: dict[str, str] = {}
        self._dry_s: dict[str, float] = {}
        for row in self._accepted.values():
            self._say(row, f"accepted: {row.get('text', '')}")

    @property
    def pids(self) -> list[int]:
        return [row["pid"] for row in self._accepted.values()]

    @property
    def finished(self) -> bool:
        return len(self._results) == len(self._accepted)

    def results(self) -> list[dict[str, Any]]:
        return in_rank_order(list(self._results.values()))

    def take(self, rows: Iterable[Row]) -> None:
        """Take a status; say what has changed."""
        by_process = {(row["host"], row["pid"]): row for row in rows}
        for trace_id, accepted in self._accepted.items():
            if trace_id not in self._results:
                row = by_process.get((accepted["host"], accepted["pid"]))
                self._take_one(trace_id, accepted, row)

    def _take_one(self, trace_id: str, accepted: Row, row: Row | None) -> None:
        trace = row.get("trace") or {} if row is not None else {}
        if row is not None and trace.get("trace_id") == trace_id:
            if trace["state"] in FINISHED:
                self._finish(trace_id, accepted, trace)
            elif row["state"] in GONE:
                text = f"the process was {row['state']} while its trace was {trace['state']}"
                self._finish(trace_id, accepted, {**trace, "state": "failed", "reason": text})
            else:
                self._say(accepted, progress_text(row))
        elif row is None or row["state"] in GONE or trace.get("trace_id"):
            known = "the process is gone" if row is None or row["state"] in GONE else "another"
            text = f"{known}: nobody knows what became of the trace"
            if known == "another":
                text = "another trace has begun since: what became of this one is not known"
            self._finish(trace_id, accepted, {"state": "failed", "reason": text})

    def _finish(self, trace_id: str, accepted: Row, trace: Row) -> None:
        complete = trace["state"] == "done" and not trace.get("partial")
        text = outcome_text(trace)
        self._results[trace_id] = {
            **accepted,
            "ok": complete,
            "text": text,
            "next_step": "",
            "trace": dict(trace),
            "files": list(trace.get("files") or ()),
        }
        self._say(accepted, text)

    def _say(self, row: Row, text: str) -> None:
        key = row["trace_id"]
        if not self._quiet and self._lines.get(key) != text:
            self._lines[key] = text
            click.echo(f"{process_name(row)}: {sentence(text)}")


def _show(rows: list[dict[str, Any]], note: str) -> None:
    for row in rows:
        verdict = "ok" if row["ok"] else "failed"
        click.echo(f"{process_name(row)}: {verdict}: {sentence(row.get('text', ''))}")
        if row.get("next_step"):
            click.echo(f"  {sentence(row['next_step'])}")
        for path in row.get("files") or ():
            click.echo(f"  {terminal_safe(path)}")
    if note:
        click.echo(f"msmon: {note}", err=True)
