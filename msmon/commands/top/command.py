"""``msmon top``: the jobs as they run, full screen or once as text."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace

import click
from rich.console import Console

from msmon.bus.messages import StatusRequest
from msmon.commands.asking.connection import Connection, daemon_options
from msmon.commands.asking.parameters import option_from
from msmon.commands.asking.paths import absolute_path
from msmon.commands.signals import ended_by_signals
from msmon.commands.top.build import ModelBuilder
from msmon.commands.top.gathering import Source, States, model_of
from msmon.commands.top.model import Model
from msmon.commands.top.once import as_json, print_text
from msmon.commands.top.screen.loop import run
from msmon.errors import UsageError
from msmon.live.feed import Feed
from msmon.settings.options import Option, text_up_to, whole_number

OPERATORS = Option(
    "operators",
    "--operators",
    "With --once: operators per rank, the longest total first.",
    whole_number,
    default=5,
    minimum=0,
    maximum=20_000,
    metavar="N",
)
LOG_FILE = Option(
    "log_file",
    "--log-file",
    "Directory for the traces of T, on the machine of the job.",
    text_up_to(4096),
    default="msmon-trace",
    metavar="DIRECTORY",
)

PIPE_WIDTH = 160
"""Columns of the text where it goes to no terminal."""


@click.command()
@click.option("--once", is_flag=True, help="Print what is known now as text, or as --json.")
@option_from(OPERATORS)
@option_from(LOG_FILE)
@daemon_options
def top(connection: Connection, once: bool, operators: int | None, log_file: str | None) -> int:
    """Show the jobs as they run: ranks, operators, and who is slow.

    It needs windows, so monitoring must run. Each rank sends one per --report-interval-s.
    Enter goes in: job, group, rank, operator, histogram. T traces the marked ranks. ? shows
    all keys.

    \b
    Monitor, and look; the second one on all nodes of a job:
      msmon npu-monitor start --kind Kernel,Communication --report-interval-s 10
      msmon top --host node1,node2
    Once, as text and for a script:
      msmon top --once
      msmon top --once --json | jq '.verdicts[].text'
    """
    connection = replace(connection, quiet=True)
    if connection.json and not once:
        raise UsageError("--json is for one look", "add --once")
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("a full screen needs a terminal", "add --once for text")
    shown = OPERATORS.default if operators is None else operators
    with ended_by_signals(), feed_of(connection) as source:
        if once:
            return _print_once(source, connection, shown)
        run(
            source,
            lambda: connection.request(StatusRequest()),
            connection.request,
            trace_directory(log_file, connection),
            connection.timeout_s,
        )
    return 0


def trace_directory(log_file: str | None, connection: Connection) -> str:
    """Return where traces go; without --log-file one that every machine has."""
    if log_file is None and not connection.same_machine:
        return f"/tmp/{LOG_FILE.default}"
    return absolute_path(log_file or LOG_FILE.default, connection)


@contextlib.contextmanager
def feed_of(connection: Connection) -> Iterator[Source]:
    """Follow the windows of all daemons that a connection names."""
    with Feed({host: one.endpoint for host, one in connection.each.items()}) as feed:
        yield feed


def _print_once(source: Source, connection: Connection, operators: int) -> int:
    reply = connection.request(StatusRequest())
    states = States(lambda: reply)
    states.look()
    model = what_is_there(source, states, connection.timeout_s)
    if connection.json:
        click.echo(as_json(model, operators))
    else:
        console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
        print_text(model, console, operators)
    return 0


def what_is_there(source: Source, states: States, timeout_s: float) -> Model:
    """Return the model of all that the daemons have, once they have told it."""
    builder = ModelBuilder()
    source.wait_for_all(timeout_s)
    builder.take(source.poll())
    return model_of(builder, source.problems, states)
