"""``msmon nputrace``: a detailed trace of some steps of running ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from msmon.bus.messages import Selection, TraceRequest
from msmon.bus.words import Outcome, TraceAction
from msmon.commands.asking.answers import show_answer
from msmon.commands.asking.connection import Connection, daemon_options
from msmon.commands.asking.parameters import Command, option_from, select_processes
from msmon.commands.asking.paths import absolute_path
from msmon.commands.nputrace.waiting import wait_for_traces
from msmon.errors import UsageError
from msmon.settings.options import MAX_U32, Option, whole_number
from msmon.settings.trace_options import TRACE_OPTION, TRACE_OPTIONS

PROCESS_LIMIT = Option(
    "process_limit",
    "--process-limit",
    "Trace at most this many processes, in the order of ranks (0: all that match).",
    whole_number,
    default=0,
    minimum=0,
    maximum=MAX_U32,
    metavar="NUMBER",
)


def _trace_options(command: Command) -> Command:
    """Add the options of ``TRACE_OPTIONS``; switches need no value."""
    for option in reversed(TRACE_OPTIONS):
        if option.default is False:
            add: Callable[[Command], Command] = click.option(
                option.flag, option.name, is_flag=True, default=None, help=option.help
            )
        else:
            add = option_from(option)
        command = add(command)
    return command


@click.command()
@_trace_options
@option_from(PROCESS_LIMIT)
@click.option(
    "--pause-monitor",
    is_flag=True,
    help="Where npu-monitor runs: pause it for the trace, then let it go on.",
)
@click.option(
    "--wait", is_flag=True, help="Show progress until every process has written its trace."
)
@click.option(
    "--cancel", is_flag=True, help="End the traces that wait or run; those keep what they have."
)
@select_processes
@daemon_options
def nputrace(
    connection: Connection,
    selection: Selection,
    process_limit: int | None,
    pause_monitor: bool,
    wait: bool,
    cancel: bool,
    **fields: Any,
) -> int:
    """Trace some steps of running processes with the framework's own profiler.

    Works in jobs of torch_npu, MindSpore and PyTorch. Step N is what runs between the Nth and
    the (N+1)th call of step(): the number that a loop counting from 0 gives it. Traces begin
    and end at steps. The job writes the files, so the directory is one of its own machine.

    \b
    The next two steps, the same ones on every rank; come back when the files are there:
      msmon nputrace --iterations 2 --log-file out --wait
    Steps 1000 to 1004 of rank 0 and 8 with stacks and shapes, parsed beside the training:
      msmon nputrace --start-step 1000 --iterations 5 --rank 0,8 --log-file /data/out \\
          --with-stack --record-shapes --analyse --async-mode
    A trace while npu-monitor runs; and the end of a trace that is not wanted any more:
      msmon nputrace --iterations 2 --log-file out --pause-monitor
      msmon nputrace --cancel
    """
    mentioned = {name: value for name, value in fields.items() if value is not None}
    if cancel:
        if mentioned or process_limit or pause_monitor or wait:
            raise UsageError("--cancel goes with --pid, --rank and --job-id only")
        return _cancel(connection, selection)
    if not mentioned.get("log_file"):
        raise UsageError("a trace needs --log-file", "name the directory for the traces")
    for name in ("iterations", "duration_ms"):
        if mentioned.get(name) == 0:  # the table allows it, as "not given"
            option = TRACE_OPTION[name]
            raise UsageError(
                f"{option.flag}: 0 is out of range", f"allowed: 1 to {option.maximum:.12g}"
            )
    if bool(mentioned.get("iterations")) == bool(mentioned.get("duration_ms")):
        raise UsageError("a trace needs either --iterations or --duration-ms", "give one of them")
    mentioned["log_file"] = absolute_path(mentioned["log_file"], connection)
    request = TraceRequest(
        TraceAction.START,
        mentioned,
        selection,
        process_limit or 0,
        pause_monitor,
        connection.timeout_s,
    )
    reply = connection.request(request)
    if wait and any(row.ok for row in reply.answer_rows):
        return wait_for_traces(reply, connection)
    code = show_answer(reply, connection.json)
    if reply.outcome in (Outcome.OK, Outcome.PARTIAL) and reply.text and not connection.json:
        click.echo(f"msmon: {reply.text}", err=True)
    return code


def _cancel(connection: Connection, selection: Selection) -> int:
    request = TraceRequest(TraceAction.CANCEL, {}, selection, timeout_s=connection.timeout_s)
    return show_answer(connection.request(request), connection.json)
