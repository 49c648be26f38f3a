"""``msmon-daemon``: serves the agents and commands of one machine until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import msmon
from msmon.bus.daemon import DaemonSettings, serve
from msmon.bus.endpoints import DEFAULT_PORT, bracketed, runtime_directory
from msmon.bus.keys import keys_directory
from msmon.bus.outputs import OnCommit
from msmon.bus.runtime import LocalAccess
from msmon.bus.timing import Timing
from msmon.commands.parameters import option_from
from msmon.errors import BusError, MsmonError, UsageError
from msmon.options import Option, real_number
from msmon.sinks.catalog import describe_sinks, parse_sink_option
from msmon.sinks.outlet import Outlet
from msmon.sinks.outputs import Outputs

LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_PORT = 65535

HEARTBEAT = Option(
    "heartbeat_s",
    "--heartbeat-s",
    "Seconds between signs of life of a process; after four without one it is lost.",
    real_number,
    default=Timing().heartbeat_s,
    minimum=0.05,
    maximum=60.0,
    metavar="SECONDS",
)


def parse_listen(text: str) -> tuple[str, int]:
    """Parse HOST, HOST:PORT, an IPv6 address or [IPv6]:PORT. Raises UsageError."""
    host, port_text = text, str(DEFAULT_PORT)
    if text.startswith("["):
        host, bracket, tail = text[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise UsageError(f"--listen: {text!r} is no address", "write for example [::1]:1778")
        port_text = tail[1:] if tail else port_text
    elif text.count(":") == 1:
        host, _, port_text = text.partition(":")
    if not host:
        raise UsageError(f"--listen: {text!r} names no host", "write 0.0.0.0 for all interfaces")
    if not (port_text.isascii() and port_text.isdigit()) or not 1 <= int(port_text) <= MAX_PORT:
        raise UsageError(
            f"--listen: {port_text!r} is no port that can be listened on",
            f"allowed: 1 to {MAX_PORT}",
        )
    return host, int(port_text)


def listen_url(host: str, port: int, insecure: bool, force: bool) -> str:
    """Return the address to bind. Raises UsageError, BusError for a host that isn't ours."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise BusError(f"--listen: {host} can't be resolved: {error.strerror}") from None
    loopback = address == "::1" or str(address).startswith("127.")
    if insecure and not (loopback or force):
        raise UsageError(
            f"--listen {host}: without security only loopback addresses are served",
            "leave --insecure out, or add --insecure-anywhere to accept everybody who can connect",
        )
    return f"tcp://{bracketed(str(address))}:{port}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--listen",
    "listens",
    multiple=True,
    metavar="HOST[:PORT]",
    help=f"Also serve other machines over TCP (port {DEFAULT_PORT} unless given). Repeatable.",
)
@click.option(
    "--runtime-dir",
    type=click.Path(path_type=Path),
    help="Directory of the local socket [default: MSMON_RUNTIME_DIR, or /run/msmon for root].",
)
@click.option(
    "--keys",
    type=click.Path(path_type=Path),
    help="Directory of the keys [default: MSMON_KEYS_DIR, or /etc/msmon/keys for root].",
)
@click.option(
    "--allow-users",
    metavar="nobody|everybody|GROUP",
    help="Which other local users may connect, for their own processes "
    "[default: everybody for a daemon of root, else nobody].",
)
@click.option(
    "--export-root",
    "export_roots",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Directory below which everybody may export. Repeatable.",
)
@click.option(
    "--sink",
    "sinks",
    multiple=True,
    metavar="NAME[:key=value,...]",
    help="Write the data of all sessions to this output. Repeatable; `--sink help` lists them.",
)
@click.option(
    "--metric-log-dir",
    type=click.Path(),
    help="Write TensorBoard scalars there: short for --sink tensorboard:dir=DIRECTORY.",
)
@click.option("--insecure", is_flag=True, help="No encryption, no keys; clients must say it too.")
@click.option(
    "--insecure-anywhere", is_flag=True, help="Let --insecure listen beyond loopback addresses."
)
@option_from(HEARTBEAT)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    show_default=True,
    help="On stderr.",
)
@click.version_option(msmon.__version__, prog_name="msmon-daemon")
def daemon(
    listens: tuple[str, ...],
    runtime_dir: Path | None,
    keys: Path | None,
    allow_users: str | None,
    export_roots: tuple[Path, ...],
    sinks: tuple[str, ...],
    metric_log_dir: str | None,
    insecure: bool,
    insecure_anywhere: bool,
    heartbeat_s: float | None,
    log_level: str,
) -> None:
    """Serve the monitored processes and the msmon commands of this machine.

    Prints one line on stderr when it is ready. SIGTERM and SIGINT stop it cleanly.
    """
    if "help" in sinks:
        _show_sinks()
        return
    _log_to_stderr(log_level)
    others = allow_users or ("everybody" if os.geteuid() == 0 else "nobody")
    settings = DaemonSettings(
        runtime_directory=(runtime_dir or runtime_directory(os.environ)).absolute(),
        keys_directory=(keys or keys_directory(os.environ)).absolute(),
        listens=tuple(
            listen_url(*parse_listen(text), insecure, insecure_anywhere) for text in listens
        ),
        insecure=insecure,
        access=LocalAccess.parse(others),
        timing=Timing(HEARTBEAT.default if heartbeat_s is None else heartbeat_s),
    )
    outlets = _outlets(sinks, metric_log_dir)

    def outputs(on_commit: OnCommit) -> Outputs:
        return Outputs(outlets, export_roots, on_commit)

    asyncio.run(serve(settings, outputs, _say_ready))


def _outlets(sinks: Sequence[str], metric_log_dir: str | None) -> list[Outlet]:
    wanted: list[tuple[Any, dict[str, Any]]] = [parse_sink_option(text) for text in sinks]
    if metric_log_dir:
        tensorboard, options = parse_sink_option("tensorboard")
        wanted.append((tensorboard, {**options, "dir": metric_log_dir}))
    return [Outlet(sink_class, options) for sink_class, options in wanted]


def _show_sinks() -> None:
    for name, text, options in describe_sinks():
        click.echo(f"{name}: {text}")
        for option in options:
            click.echo(f"  {option}")


def _say_ready(line: str) -> None:
    click.echo(line, err=True)


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("msmon")
    logger.addHandler(handler)
    logger.setLevel(level.upper())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon and return its exit code: 0 after a clean stop, 2 for a wrong option."""
    try:
        daemon.main(arguments, prog_name="msmon-daemon", standalone_mode=False)
    except MsmonError as error:
        click.echo(f"msmon-daemon: {error.message}", err=True)
        if error.next_step:
            click.echo(f"  {error.next_step}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
