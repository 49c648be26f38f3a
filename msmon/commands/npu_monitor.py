"""``msmon npu-monitor start|update|stop``: collect operator timings in running ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from msmon.bus.messages import MonitorRequest, Selection
from msmon.bus.words import MonitorAction
from msmon.commands.asking.answers import sentence, show_answer
from msmon.commands.asking.connection import Connection, daemon_options
from msmon.commands.asking.parameters import Command, option_from, select_processes
from msmon.commands.asking.paths import absolute_path
from msmon.errors import UsageError
from msmon.settings.options import MONITOR_OPTION, MONITOR_OPTIONS

_OF_FILES = ("export_type", "jsonl_rotate_lines", "jsonl_rotate_files")
"""Options that say how the files of ``--log-file`` are written."""


@click.group("npu-monitor", context_settings={"help_option_names": ["-h", "--help"]})
def npu_monitor() -> None:
    """Collect operator timings inside running processes; the job is not restarted.

    \b
    msmon npu-monitor start --filter "Kernel:MatMul" --report-interval-s 1
    msmon npu-monitor update --report-interval-s 5
    msmon npu-monitor stop
    msmon npu-monitor start --always            # also in ranks that start later

    Without --pid, --rank or --job-id every registered process takes part.
    """


def _monitor_options(starting: bool) -> Callable[[Command], Command]:
    """Add the typed options of ``MONITOR_OPTIONS``.

    In the help of update, what can't be updated is hidden, and the default is what runs.
    """

    def add(command: Command) -> Command:
        for option in reversed(MONITOR_OPTIONS):
            if option.flag.startswith("--"):
                hidden = not (starting or option.updatable)
                default_text = "" if starting else "unchanged"
                command = option_from(option, default_text, hidden=hidden)(command)
        return command

    return add


@npu_monitor.command()
@_monitor_options(starting=True)
@click.option(
    "--always",
    is_flag=True,
    help="A standing order: also for processes that register later, until stop.",
)
@click.option("--name", metavar="NAME", help="Name of the standing order [default: always].")
@select_processes
@daemon_options
def start(
    connection: Connection, selection: Selection, always: bool, name: str | None, **fields: Any
) -> int:
    """Start collecting.

    Statistics per operator go to the daemon's outputs; with --log-file every record is
    exported to that directory as well.

    \b
    All-reduces and every kernel with MatMul in its name, a window each second:
      msmon npu-monitor start --report-interval-s 1 \\
          --filter "Kernel:MatMul;Communication:allReduce"
    Thirty seconds of ranks 0 to 3 into a database:
      msmon npu-monitor start --kind Kernel,API --rank 0-3 --duration 30 --log-file ./out
    Every rank of job 4711, over restarts of ranks and daemon, a window each 10 seconds:
      msmon npu-monitor start --always --job-id 4711 --kind Kernel,Communication,Marker
    """
    if name and not always:
        raise UsageError("--name names a standing order", "add --always")
    if always and selection.pids:
        raise UsageError(
            "--always can't be for a --pid, which another process has tomorrow",
            "name --rank or --job-id, or neither for every process",
        )
    if always and fields["duration_s"]:
        raise UsageError("--always has no --duration: it holds until stop", "leave one of them out")
    useless = [MONITOR_OPTION[name].flag for name in _OF_FILES if fields[name] is not None]
    if useless and not fields["log_file"]:
        raise UsageError(
            f"{', '.join(useless)}: no files are written without --log-file",
            "add --log-file DIRECTORY",
        )
    return _command(MonitorAction.START, fields, connection, selection, always, name or "")


@npu_monitor.command()
@_monitor_options(starting=False)
@select_processes
@daemon_options
def update(connection: Connection, selection: Selection, **fields: Any) -> int:
    """Change a running session; what is not mentioned stays as it is.

    \b
    msmon npu-monitor update --report-interval-s 5
    msmon npu-monitor update --filter ""          # lift the filter, keep the kinds
    """
    mentioned = [name for name, value in fields.items() if value is not None]
    if not mentioned:
        raise UsageError("nothing to change", "give --kind, --filter or --report-interval-s")
    fixed = [MONITOR_OPTION[n].flag for n in mentioned if not MONITOR_OPTION[n].updatable]
    if fixed:
        raise UsageError(
            f"{', '.join(fixed)} can't change while monitoring runs",
            "stop the session and start a new one",
        )
    return _command(MonitorAction.UPDATE, fields, connection, selection)


@npu_monitor.command()
@click.option("--name", metavar="NAME", help="End this standing order, and what comes from it.")
@select_processes
@daemon_options
def stop(connection: Connection, selection: Selection, name: str | None) -> int:
    """Stop collecting; prints what each process delivered and wrote.

    Standing orders for just these processes end as well. One that is also for others goes on for
    those, and leaves these alone from now on, also after a restart.

    \b
    Everything, and every standing order:
      msmon npu-monitor stop
    Rank 3, which a standing order for all leaves alone from now on:
      msmon npu-monitor stop --rank 3
    """
    if name and selection != Selection():
        raise UsageError("--name ends an order for all its processes", "select none")
    return _command(MonitorAction.STOP, {}, connection, selection, name=name or "")


def _command(
    action: MonitorAction,
    fields: dict[str, Any],
    connection: Connection,
    selection: Selection,
    always: bool = False,
    name: str = "",
) -> int:
    mentioned = {name: value for name, value in fields.items() if value is not None}
    if mentioned.get("log_file"):
        mentioned["log_file"] = absolute_path(mentioned["log_file"], connection)
    request = MonitorRequest(action, mentioned, selection, connection.timeout_s, always, name)
    reply = connection.request(request)
    code = show_answer(reply, connection.json)
    if reply.text and not code and not connection.json:
        click.echo(sentence(reply.text))  # what has become of standing orders
    return code
