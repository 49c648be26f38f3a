"""How the answer to a command is shown: one line per process, what went wrong and what
to do about it, and the exit code."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import click

from msmon.bus.messages import Reply

HEADLINES = {
    "none-registered": "no process is registered with the daemon",
    "none-matched": "no registered process matches",
    "lost": "the process has ended or is no longer heard of",
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


def not_collected(row: Mapping[str, Any]) -> list[str]:
    """Return a sentence per reason for which kinds of records can't be collected."""
    kinds: dict[str, list[str]] = {}
    for kind, reason in (row.get("unavailable_kinds") or {}).items():
        kinds.setdefault(sentence(reason), []).append(kind)
    return [
        f"{','.join(names)} {'is' if len(names) == 1 else 'are'} not collected: {reason}"
        for reason, names in kinds.items()
    ]


def process_name(row: Mapping[str, Any]) -> str:
    """Return "rank 3 host:pid", or what is known: "host:pid", "rank 9", "pid 5", "job x"."""
    rank = row.get("rank", -1)
    names = [f"rank {rank}"] if isinstance(rank, int) and rank >= 0 else []
    if "host" in row:
        names.append(f"{terminal_safe(row['host'])}:{row.get('pid', '?')}")
    elif "pid" in row:
        names.append(f"pid {row['pid']}")
    elif "job_id" in row:
        names.append(f"job {terminal_safe(row['job_id'])}")
    return " ".join(names) or "a process"


def in_rank_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows by job, rank, host and pid."""
    return sorted(
        rows,
        key=lambda row: (
            str(row.get("job_id", "")),
            row.get("rank", -1),
            str(row.get("host", "")),
            row.get("pid", 0),
        ),
    )


def as_json(reply: Reply) -> str:
    """Return the reply as one line of JSON; keys are those of :class:`Reply`."""
    return json.dumps(dataclasses.asdict(reply))


def show_answer(reply: Reply, json_wanted: bool) -> int:
    """Print what happened in every process and return the exit code.

    0 only when something matched and every process said yes; what was selected and is not
    there has a row that says no.
    """
    succeeded = reply.outcome == "ok" and all(row.get("ok", True) for row in reply.rows)
    if json_wanted:
        click.echo(as_json(reply))
        return 0 if succeeded else 1
    if reply.outcome not in HEADLINES:  # there the text says what the rows say
        for row in in_rank_order(reply.rows):
            _show_row(row)
    if not succeeded:
        _show_failure(reply)
    return 0 if succeeded else 1


def _show_row(row: Mapping[str, Any]) -> None:
    verdict = "ok" if row.get("ok", True) else "failed"
    text = sentence(row.get("text", ""))
    click.echo(f"{process_name(row)}: {verdict}{': ' if text else ''}{text}")
    if row.get("next_step"):
        click.echo(f"  {sentence(row['next_step'])}")
    for line in not_collected(row):
        click.echo(f"  {line}")
    for path in row.get("files") or ():
        click.echo(f"  {terminal_safe(path)}")


def _show_failure(reply: Reply) -> None:
    text = reply.text or HEADLINES.get(reply.outcome, "")
    if text:
        click.echo(f"msmon: {text}", err=True)
    if reply.next_step:
        click.echo(f"  {reply.next_step}", err=True)
