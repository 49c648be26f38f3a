"""How the answer to a command is shown.

A line per process, what went wrong and what to do about it, and the exit code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

import click

from msmon.bus.codec import as_fields, plain
from msmon.bus.messages import Reply
from msmon.bus.rows import AnswerRow, DaemonRow, MissingRow, Row, StatusRow
from msmon.bus.words import Outcome


@dataclass(frozen=True)
class MergedReply(Reply):
    """What several daemons say, as one reply; see ``many_daemons``."""

    daemons: list[DaemonRow] = field(default_factory=list)


def daemons(reply: Reply) -> list[DaemonRow]:
    """Return the facts on every daemon that took part in a reply."""
    if isinstance(reply, MergedReply):
        return reply.daemons
    return [reply.daemon] if reply.daemon else []


AnyRow = TypeVar("AnyRow", bound=Row)

HEADLINES: Mapping[str, str] = {
    Outcome.NONE_REGISTERED: "no process is registered with the daemon",
    Outcome.NONE_MATCHED: "no registered process matches",
    Outcome.LOST: "the process has ended or is no longer heard of",
}
"""What is said where the daemon gives no sentence of its own."""


def terminal_safe(value: Any) -> str:
    """Return text that can't move the cursor or break a line of the terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in str(value)
    )


def sentence(text: Any) -> str:
    """Return a message of several lines, such as an error and its next step, as one."""
    return "; ".join(terminal_safe(line) for line in str(text).splitlines())


def not_collected(row: StatusRow) -> list[str]:
    """Return a sentence per reason for which kinds of records can't be collected."""
    kinds: dict[str, list[str]] = {}
    for kind, reason in row.unavailable_kinds.items():
        kinds.setdefault(sentence(reason), []).append(kind)
    return [
        f"{','.join(names)} {'is' if len(names) == 1 else 'are'} not collected: {reason}"
        for reason, names in kinds.items()
    ]


def process_name(row: Row) -> str:
    """Return "rank 3 host:pid", or what is known: "host:pid", "rank 9", "pid 5", "job x"."""
    names = [f"rank {row.rank}"] if row.rank is not None and row.rank >= 0 else []
    if not isinstance(row, MissingRow):
        names.append(f"{terminal_safe(row.host)}:{row.pid}")
    elif row.pid is not None:
        names.append(f"pid {row.pid}")
    elif row.job_id is not None:
        names.append(f"job {terminal_safe(row.job_id)}")
    return " ".join(names) or "a process"


def in_rank_order(rows: Iterable[AnyRow]) -> list[AnyRow]:
    """Return rows by job, rank, host and pid."""

    def place(row: AnyRow) -> tuple[str, int, str, int]:
        rank = -1 if row.rank is None else row.rank
        host = "" if isinstance(row, MissingRow) else row.host
        return row.job_id or "", rank, host, row.pid or 0

    return sorted(rows, key=place)


def as_json(reply: Reply) -> str:
    """Return the reply as one line of JSON: its fields, and a key per field of each row."""
    return json.dumps(
        {
            "outcome": reply.outcome,
            "text": reply.text,
            "next_step": reply.next_step,
            "rows": [as_fields(row) for row in reply.rows],
            "daemon": daemon_fields(reply),
        },
        default=plain,
    )


def daemon_fields(reply: Reply) -> dict[str, Any]:
    """Return what ``--json`` tells of the daemon; empty where the answer tells nothing of it."""
    if isinstance(reply, MergedReply):
        return {"daemons": [as_fields(daemon) for daemon in reply.daemons]}
    return as_fields(reply.daemon) if reply.daemon else {}


def show_answer(reply: Reply, json_wanted: bool) -> int:
    """Print what happened in every process and return the exit code.

    0 only when something matched and every process said yes; what was selected and is not
    there has a row that says no.
    """
    succeeded = reply.outcome == Outcome.OK and all(row.ok for row in reply.answer_rows)
    if json_wanted:
        click.echo(as_json(reply))
        return 0 if succeeded else 1
    for row in in_rank_order(reply.answer_rows):
        if isinstance(row, AnswerRow) or reply.outcome not in HEADLINES:
            show_row(row)  # of what is missing everywhere the text of the answer tells
    if not succeeded:
        _show_failure(reply)
    return 0 if succeeded else 1


def show_row(row: Union[AnswerRow, MissingRow]) -> None:
    """Print what a command did in one process, what to do about it, and the files written."""
    text = sentence(row.text)
    click.echo(f"{process_name(row)}: {'ok' if row.ok else 'failed'}{': ' if text else ''}{text}")
    if isinstance(row, MissingRow):
        return
    if row.next_step:
        click.echo(f"  {sentence(row.next_step)}")
    for path in row.files or ():
        click.echo(f"  {terminal_safe(path)}")


def _show_failure(reply: Reply) -> None:
    text = reply.text or HEADLINES.get(reply.outcome, "")
    if text:
        click.echo(f"msmon: {text}", err=True)
    if reply.next_step:
        click.echo(f"  {reply.next_step}", err=True)
