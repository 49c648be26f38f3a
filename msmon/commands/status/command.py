"""``msmon status``: a row per registered process, and what is worth knowing below it."""

from __future__ import annotations

import json
import sys
import time
from typing import NoReturn

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from msmon.bus.messages import Reply, Selection, StatusRequest
from msmon.bus.words import Outcome
from msmon.commands.asking.answers import as_json, daemons, show_answer
from msmon.commands.asking.connection import Connection, daemon_options
from msmon.commands.asking.parameters import option_from, select_processes
from msmon.commands.status.process_table import daemon_lines, details, notes, process_table
from msmon.errors import MsmonError
from msmon.settings.options import Option, real_number

INTERVAL = Option(
    "interval_s",
    "--interval",
    "Seconds between two looks of --watch.",
    real_number,
    default=2.0,
    minimum=0.2,
    maximum=3600,
    metavar="SECONDS",
)

PIPE_WIDTH = 2000
"""Where the output is no terminal, nothing is cut or wrapped."""


@click.command()
@click.option("--verbose", "-v", is_flag=True, help="Show all that is known of each process.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@option_from(INTERVAL)
@select_processes
@daemon_options
def status(
    connection: Connection,
    selection: Selection,
    verbose: bool,
    watch: bool,
    interval_s: float | None,
) -> int:
    """Show every registered process: state, settings in force, records, drops.

    DROPPED adds up all stages but "open": ranges still open when monitoring stopped. A + means
    that more were lost, and nobody knows how many.

    \b
    Ranks 0 to 7 with all that is known of them, again every two seconds:
      msmon status --rank 0-7 --verbose --watch
    The states as a script wants them:
      msmon status --json | jq '.rows[] | {rank, state, drops}'
    """
    verbose = verbose or bool(selection.pids or selection.ranks or selection.job_ids)
    if watch:
        _watch(connection, selection, verbose, interval_s or INTERVAL.default)
    reply = connection.request(StatusRequest(selection))
    if connection.json or not reply.rows:
        return _answer_without_table(reply, selection, connection)
    _console().print(_page(reply, verbose))
    if reply.text:  # some of those asked for are not there
        click.echo(f"msmon: {reply.text}", err=True)
    return 1 if reply.text else 0


def _answer_without_table(reply: Reply, selection: Selection, connection: Connection) -> int:
    if not connection.json:
        for line in (line for daemon in daemons(reply) for line in daemon_lines(daemon)):
            click.echo(line.plain)
    code = show_answer(reply, connection.json)
    if selection == Selection() and reply.outcome == Outcome.NONE_REGISTERED:
        return 0  # nobody there is an answer, too
    return 1 if reply.text else code


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def _page(reply: Reply, verbose: bool) -> RenderableType:
    parts: list[RenderableType] = [
        *(line for daemon in daemons(reply) for line in daemon_lines(daemon, verbose)),
        Text(),
        process_table(reply.status_rows),
    ]
    if verbose:
        parts += [line for row in reply.status_rows for line in (Text(), *details(row))]
    else:
        below = notes(reply.status_rows)
        parts += [Text(), *below] if below else []
    return Group(*parts)


def _watch(
    connection: Connection, selection: Selection, verbose: bool, interval_s: float
) -> NoReturn:
    """Show the status again and again until Ctrl-C; a daemon that is away may come back."""
    console = _console()
    live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
    in_place = sys.stdout.isatty() and not connection.json
    if in_place:
        live.start()
    try:
        while True:
            text, page = _look(connection, selection, verbose)
            if in_place:
                live.update(page, refresh=True)
            elif connection.json:
                click.echo(text)
            else:
                console.print(page)
            time.sleep(interval_s)
    finally:
        live.stop()


def _look(
    connection: Connection, selection: Selection, verbose: bool
) -> tuple[str, RenderableType]:
    """Return the status of now, as JSON and as a page."""
    try:
        reply = connection.request(StatusRequest(selection))
    except MsmonError as error:
        document = {"outcome": "error", "text": error.message, "next_step": error.next_step}
        return json.dumps(document), Text(f"{error.message}\n{error.next_step}".rstrip())
    if reply.rows:
        return as_json(reply), _page(reply, verbose)
    return as_json(reply), Text(f"{reply.text}\n{reply.next_step}".rstrip())
