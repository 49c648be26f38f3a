"""``msmon watch``: says by itself who is slow, and acts on it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import click

from msmon.bus.messages import StatusRequest
from msmon.commands.asking.connection import Connection, daemon_options
from msmon.commands.watch.delivery import Delivery
from msmon.commands.watch.loop import Tracing, Watch
from msmon.commands.watch.notices import Note
from msmon.commands.watch.on_verdict import CommandRunner
from msmon.commands.watch.options import ENVIRONMENT_PREFIX, in_force, watch_options
from msmon.commands.watch.printing import Printer
from msmon.commands.watch.registered import Registered
from msmon.commands.watch.tracing import Limits, TraceLimits, Tracer, TraceTask
from msmon.commands.watch.unit import install_watch_unit
from msmon.commands.watch.webhook import Webhook
from msmon.errors import UsageError
from msmon.live.feed import Feed

PARENT = "MSMON_WATCH_PARENT"
"""Variable with the pid of the daemon that has started this watch, and with which it ends."""


@click.command(context_settings={"auto_envvar_prefix": ENVIRONMENT_PREFIX})
@watch_options
@click.option("--install-unit", is_flag=True, help="Install the systemd unit; end.")
@click.option("--user", is_flag=True, help="With --install-unit: a watch of this user's own.")
@click.option("--print", "print_only", is_flag=True, help="With --install-unit: only show it.")
@daemon_options
def watch(
    connection: Connection, install_unit: bool, user: bool, print_only: bool, **given: Any
) -> int:
    """Say which rank is slow, why, since when and what it costs, while jobs run.

    Prints verdicts as they begin, change and clear, and what can't be judged. It needs windows, so
    monitoring must run. Verdicts that cost at least 1 % of a step can call a command or an address,
    and have the ranks traced. SIGTERM and SIGINT end it.

    \b
    All nodes of a job, with a trace of the rank to blame, a peer and one that waits:
      msmon watch --host node1,node2 --trace --log-file /data/traces
    A mail for each verdict; a chat's address, with the secret in a file:
      msmon watch --on-verdict 'jq -r .text | mail -s msmon ops'
      msmon watch --webhook https://chat.example/hook --webhook-secret-file ~/hook.secret
    As JSON lines; as a service, whose options are in /etc/msmon/watch.env:
      msmon watch --json
      msmon watch --install-unit
    """
    if (user or print_only) and not install_unit:
        raise UsageError("--user and --print belong to --install-unit")
    values = in_force(given)
    if install_unit:
        install_watch_unit(user, print_only)
        return 0
    _run(replace(connection, quiet=True), values)
    return 0


def _run(connection: Connection, values: dict[str, Any]) -> None:
    printer = Printer(connection.json)
    with contextlib.ExitStack() as stack:
        is_over = stack.enter_context(_ended_by_signals())
        documents = [stack.enter_context(delivery) for delivery in _documents(values, printer)]
        tracing = _tracing(connection, values) if values["trace"] else None
        if tracing is not None:
            stack.enter_context(tracing.delivery)
        registered = stack.enter_context(Registered(lambda: connection.request(StatusRequest())))
        feed = stack.enter_context(
            Feed({host: one.endpoint for host, one in connection.each.items()})
        )
        Watch(feed, printer, values["minor"], registered, documents, tracing).run(is_over)
    deliveries: list[Delivery[Any]] = [*documents]
    if tracing is not None:
        deliveries.append(tracing.delivery)
    for delivery in deliveries:
        for text in delivery.news():
            printer.note(Note(delivery.name, text))


def _documents(values: dict[str, Any], printer: Printer) -> Iterator[Delivery[bytes]]:
    """Yield what gets each verdict as JSON. Raises UsageError for what can't be used."""
    if values["webhook"]:
        webhook = Webhook(values["webhook"], values["webhook_secret_file"] or "")
        if webhook.shows_secret:
            printer.note(Note("--webhook", "the secret crosses the network as it is: use https"))
        yield Delivery("--webhook", webhook)
    if values["on_verdict"]:
        runner = CommandRunner(values["on_verdict"], values["on_verdict_limit_s"])
        yield Delivery("--on-verdict", runner)


def _tracing(connection: Connection, values: dict[str, Any]) -> Tracing:
    tracer = Tracer(connection.request, values["log_file"], connection.timeout_s)
    limits = Limits(60 * values["trace_every_min"], values["traces_per_day"])
    delivery: Delivery[TraceTask] = Delivery("--trace", tracer)
    return Tracing(tracer, delivery, TraceLimits(limits))


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[Callable[[], bool]]:
    """Hand out a question: has a signal asked for the end, or has the daemon gone that started it?

    Only for the main thread.
    """
    asked: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    former = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if former[number] is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, lambda received, _: asked.append(received))
    parent = os.environ.get(PARENT, "")

    def is_over() -> bool:
        return bool(asked) or (parent.isdigit() and os.getppid() != int(parent))

    try:
        yield is_over
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
