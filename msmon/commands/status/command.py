"""``msmon status``: a row per registered process, and what is worth knowing below it."""

from __future__ import annotations

import sys
import time
from typing import NoReturn

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from msmon.bus.messages import Reply, Selection, StatusRequest
from msmon.bus.words import GONE, Outcome
from msmon.commands.asking.answers import as_json, daemons, show_answer
from msmon.commands.asking.connection import Connection, daemon_options
from msmon.commands.asking.parameters import option_from, select_processes
from msmon.commands.error_answer import error_as_json
from msmon.commands.status.page import page_that_fits, whole_page
from msmon.commands.status.process_table import daemon_lines
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
@click.option(
    "--verbose",
    "-v",
    is_flag=True,
    help="Show all that is known of each process. "
    "Also done where --pid, --rank or --job-id leave one only.",
)
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
    if watch:
        _watch(connection, selection, verbose, interval_s or INTERVAL.default)
    reply = connection.request(StatusRequest(selection))
    if connection.json or not reply.rows:
        return _answer_without_table(reply, selection, connection)
    _console().print(whole_page(reply, verbose or _is_one_selected(reply, selection)))
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


def _is_one_selected(reply: Reply, selection: Selection) -> bool:
    """Whether the user has asked for one process, of which all is shown.

    What is gone does not count beside one that runs: the rank of a job that was started again.
    """
    rows = reply.status_rows
    live = [row for row in rows if row.state not in GONE]
    return selection != Selection() and len(live or rows) == 1


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def _watch(
    connection: Connection, selection: Selection, verbose: bool, interval_s: float
) -> NoReturn:
    """Show the status again and again until Ctrl-C; a daemon that is away may come back.

    In place a page has at most the lines of the terminal. Where even one process has more,
    an ellipsis ends the page.
    """
    console = _console()
    live = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis")
    in_place = sys.stdout.isatty() and not connection.json
    if in_place:
        live.start()
    try:
        while True:
            if connection.json:
                click.echo(_look_as_json(connection, selection))
            else:
                page = _look(connection, selection, verbose, console if in_place else None)
                if in_place:
                    live.update(page, refresh=True)
                else:
                    console.print(page)
            time.sleep(interval_s)
    finally:
        live.stop()


def _look_as_json(connection: Connection, selection: Selection) -> str:
    """Return the status of now as one line of JSON, also where no daemon answers."""
    try:
        return as_json(connection.request(StatusRequest(selection)))
    except MsmonError as error:
        return error_as_json(error)


def _look(
    connection: Connection, selection: Selection, verbose: bool, low: Console | None
) -> RenderableType:
    """Return the page of now; ``low``: the terminal that it must fit, if it must."""
    try:
        reply = connection.request(StatusRequest(selection))
    except MsmonError as error:
        return Text(f"{error.message}\n{error.next_step}".rstrip())
    if not reply.rows:
        return Text(f"{reply.text}\n{reply.next_step}".rstrip())
    verbose = verbose or _is_one_selected(reply, selection)
    return page_that_fits(reply, verbose, low) if low else whole_page(reply, verbose)
