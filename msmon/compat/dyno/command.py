"""``msmon-dyno``: the command lines of msMonitor's ``dyno``, so that scripts need one alias.

Options, ranges and answers are dyno's: the configuration text, then ``response = {…}``;
exit code 0 also where a command was "ineffective". Why it was is said on stderr. Better
than there: ``--job-id`` and ``--pids`` work, and an update changes what is typed only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

import msmon
from msmon.bus.endpoints import DEFAULT_PORT
from msmon.bus.messages import StatusRequest, TraceRequest, VersionRequest
from msmon.bus.words import MonitorAction, TraceAction
from msmon.commands.asking.connection import LOOPBACK_HOSTS, Connection
from msmon.commands.asking.parameters import checked
from msmon.commands.asking.paths import absolute_path
from msmon.compat.dyno import translation as dyno_requests
from msmon.compat.dyno.responses import show, show_matched, show_status
from msmon.errors import MsmonError, UsageError
from msmon.settings.options import MONITOR_OPTION, MONITOR_OPTIONS, Option
from msmon.settings.trace_options import TRACE_OPTIONS

Command = TypeVar("Command", bound=Callable[..., Any])

NO_CERTS = "NO_CERTS"
CERTS_ADVICE = (
    "msmon has CURVE keys instead of TLS certificates, so {directory} is not read. On this machine "
    "no key is needed. For a remote daemon: `msmon keys init` here, then on its machine "
    "`msmon keys allow FILE --role operator` with the public key that it made."
)
DYNO_FLAGS = {"kinds": "--mspti-activity-kind", "start_time_ms": "--profile-start-time"}
"""Options that have another name in dyno."""
IGNORED_TRACE_OPTIONS = frozenset({"duration_ms", "warmup"})
"""dyno takes the first and never acts on it, since it wants a number of iterations."""


def _option(option: Option, **attributes: Any) -> Callable[[Command], Command]:
    """Return the click decorator for an option of our tables, under dyno's name."""
    flag = DYNO_FLAGS.get(option.name, option.flag)
    if isinstance(option.default, bool):
        return click.option(flag, option.name, is_flag=True, default=None, help=option.help)
    convert = checked(option)
    if option.name.startswith("jsonl_"):
        convert = _or_empty(option)
    elif option.name == "host_sys" or option.name.startswith("mstx_domain"):
        convert = _or_none(option)
    metavar = option.metavar or "|".join(option.choices) or None
    return click.option(
        flag, option.name, type=convert, help=option.help, metavar=metavar, **attributes
    )


def _or_empty(option: Option) -> Callable[[Any], Any]:
    """dyno's rotation options default to an empty text."""
    check = checked(option)
    return lambda value: None if value == "" else check(value)


def _or_none(option: Option) -> Callable[[Any], Any]:
    """dyno writes "None" where our text is empty."""
    check = checked(option)
    return lambda value: check("" if value == "None" else value)


def _without_zero(value: Any) -> Any:
    """dyno's interval 0 means: as it is."""
    return (
        None if str(value).strip() == "0" else checked(MONITOR_OPTION["report_interval_s"])(value)
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(msmon.__version__, prog_name="msmon-dyno")
@click.option("--hostname", default="localhost", help="Host of the daemon.")
@click.option("--port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, help="Its TCP port.")
@click.option("--certs-dir", default=NO_CERTS, help="Not used: msmon has keys, see `msmon keys`.")
@click.pass_context
def dyno(ctx: click.Context, hostname: str, port: int, certs_dir: str) -> None:
    """Command msmon-daemon with the command lines of msMonitor's dyno."""
    if certs_dir != NO_CERTS:
        click.echo(f"msmon-dyno: {CERTS_ADVICE.format(directory=certs_dir)}", err=True)
    ctx.obj = Connection("" if hostname in LOOPBACK_HOSTS else hostname, port)


@dyno.command()
@click.pass_obj
def status(connection: Connection) -> None:
    """Show the state of npu-monitor and nputrace."""
    show_status(connection.request(StatusRequest()))


@dyno.command()
@click.pass_obj
def version(connection: Connection) -> None:
    """Show the daemon's version."""
    daemon = connection.request(VersionRequest()).daemon
    show({"version": daemon.version if daemon else ""})


def _monitor_options(command: Command) -> Command:
    for option in reversed(MONITOR_OPTIONS):
        if option.name == "report_interval_s":
            add: Callable[[Command], Command] = click.option(
                option.flag, option.name, type=_without_zero, help=option.help, metavar="SECONDS"
            )
            command = add(command)
        elif option.flag.startswith("--"):
            command = _option(option)(command)
    return command


@dyno.command("npu-monitor")
@click.option("--npu-monitor-start", "starting", is_flag=True, help="Start, or change.")
@click.option("--npu-monitor-stop", "stopping", is_flag=True, help="Stop; wins over start.")
@_monitor_options
@click.pass_obj
def npu_monitor(connection: Connection, /, starting: bool, stopping: bool, **typed: Any) -> None:
    """Start, change or stop operator monitoring in every registered process."""
    fields = _mentioned(typed, connection)
    click.echo(dyno_requests.monitor_text(starting, stopping, fields))
    action = MonitorAction.START if starting else MonitorAction.UPDATE
    if stopping:
        action = MonitorAction.STOP
    show_matched(dyno_requests.monitor(connection, action, fields))


def _trace_options(command: Command) -> Command:
    for option in reversed(TRACE_OPTIONS):
        if option.name not in IGNORED_TRACE_OPTIONS:
            required = option.name in ("iterations", "start_step", "log_file")
            command = _option(option, required=required)(command)
    return command


@dyno.command()
@click.option("--job-id", default="0", help="Only processes of this job; 0: all.")
@click.option("--pids", default="0", help="Only these processes or their children; 0: all.")
@click.option("--process-limit", type=click.IntRange(min=0), default=0, help="0: all that match.")
@click.option("--rank-list", default="", help="Only these ranks.")
@click.option("--duration-ms", type=int, hidden=True)
@_trace_options
@click.pass_obj
def nputrace(
    connection: Connection,
    /,
    job_id: str,
    pids: str,
    process_limit: int,
    rank_list: str,
    duration_ms: int | None,
    **typed: Any,
) -> None:
    """Trace some steps with the framework's profiler."""
    fields = _mentioned(typed, connection)
    if fields["iterations"] == 0:
        raise UsageError("--iterations: 0 is out of range", "allowed: 1 or more")
    selection = dyno_requests.selection(connection, pids, job_id, rank_list)
    click.echo(dyno_requests.shown_trace_text(fields, selection.ranks))
    request = TraceRequest(TraceAction.START, fields, selection, process_limit)
    pids_matched = show_matched(connection.request(request))
    click.echo(f"Matched {len(pids_matched)} processes")
    for pid in pids_matched:
        click.echo(f"    {pid}: {fields['log_file']}")


def _mentioned(typed: dict[str, Any], connection: Connection) -> dict[str, Any]:
    fields = {name: value for name, value in typed.items() if value is not None}
    if fields.get("log_file"):
        fields["log_file"] = absolute_path(fields["log_file"], connection)
    return fields


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 without an answer, 2 for a bad option."""
    try:
        dyno.main(arguments, prog_name="msmon-dyno", standalone_mode=False)
    except MsmonError as error:
        click.echo(f"msmon-dyno: {error}", err=True)
        return error.exit_code
    except click.Abort:
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return 0
