"""The command ``msmon-daemon``: turns its options into settings and runs the daemon."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import msmon
from msmon.bus.endpoints import DEFAULT_PORT, bracketed
from msmon.commands.daemon.always_table import shown_order
from msmon.commands.daemon.config import Settings, in_force, shown, standing_order, use_config
from msmon.commands.daemon.daemon_options import DAEMON_OPTIONS, daemon_options
from msmon.commands.daemon.unit import install, next_commands, system_files, user_files
from msmon.daemon.access.audit import state_directory
from msmon.daemon.access.owners import owner_directory
from msmon.daemon.notify import ServiceManager
from msmon.daemon.outputs.output import Output
from msmon.daemon.outputs.outputs import OnCommit, Outputs, OutputsConfig
from msmon.daemon.outputs.stored_progress import ProgressDirectory
from msmon.daemon.recent.recent_windows import RecentLimits
from msmon.daemon.runtime import LocalAccess
from msmon.daemon.service import DaemonSettings, Surface, serve
from msmon.daemon.standing.orders import OrderFromFile
from msmon.daemon.timing import Timing
from msmon.errors import BusError, MsmonError, UsageError
from msmon.logs import OneLineFormatter, RateFilter
from msmon.sinks.catalog import describe_sinks, parse_sink_option

MAX_PORT = 65535

CREDENTIAL = "msmon.server.key_secret"
"""Name of the server's key file among systemd's credentials."""

_log = logging.getLogger("msmon.daemon")


def parse_listen(text: str) -> tuple[str, int]:
    """Return (host, port) from HOST, HOST:PORT, IPv6 or [IPv6]:PORT. Raises UsageError."""
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
    """Return the address to bind, for example "tcp://127.0.0.1:1778".

    Raises BusError if the host can't be resolved, and UsageError if ``insecure`` would serve
    more than loopback; ``force`` allows that.
    """
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


def _use_config(ctx: click.Context, _: click.Parameter, config: Path | None) -> None:
    # Only --install-unit needs no configuration. It is known here, because it is eager too.
    if not ctx.params.get("install_unit"):
        use_config(ctx, config)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@daemon_options
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,  # Click reads it first: other options take their values from the file.
    expose_value=False,
    callback=_use_config,
    metavar="FILE",
    help="Configuration [default: /etc/msmon/daemon.toml for root, else "
    "~/.config/msmon/daemon.toml].",
)
@click.option("--check-config", is_flag=True, help="Show what is in force and from where; end.")
@click.option("--install-unit", is_flag=True, is_eager=True, help="Install the systemd unit; end.")
@click.option("--user", is_flag=True, help="With --install-unit: a daemon of this user's own.")
@click.option("--print", "print_only", is_flag=True, help="With --install-unit: only show it.")
@click.version_option(msmon.__version__, prog_name="msmon-daemon")
@click.pass_context
def daemon(
    ctx: click.Context,
    /,
    check_config: bool,
    install_unit: bool,
    user: bool,
    print_only: bool,
    **values: Any,
) -> None:
    """Serve the monitored processes and the msmon commands of this machine.

    Prints one line on stderr when it is ready. SIGTERM and SIGINT stop it cleanly, SIGHUP
    reads allow-list and configuration again.
    """
    if (user or print_only) and not install_unit:
        raise UsageError("--user and --print belong to --install-unit")
    if install_unit:
        _install_unit(user, print_only)
    elif "help" in values["sink"]:
        _show_sinks()
    elif check_config:
        _check_config(ctx)
    else:
        _serve(ctx)


def _serve(ctx: click.Context) -> None:
    settings = in_force(ctx)
    _log_to_stderr(settings["log_level"].value)
    made: list[Outputs] = []
    order = OrderFromFile(standing_order(ctx))
    config = OutputsConfig(_outputs(settings), _export_roots(settings), state_directory(os.environ))

    def outputs(on_commit: OnCommit) -> Outputs:
        made.append(Outputs(config, on_commit))
        return made[-1]

    def reload() -> None:
        new_ctx = daemon.make_context(ctx.info_name, list(ctx.obj), obj=ctx.obj)
        new = in_force(new_ctx)
        order.replace(standing_order(new_ctx))
        logging.getLogger("msmon").setLevel(new["log_level"].value.upper())
        for each in made:
            each.roots.replace(_export_roots(new))
        _warn_of_fixed(settings, new)

    surface = Surface(_say_ready, reload, ServiceManager(os.environ))
    asyncio.run(serve(_daemon_settings(settings, order), outputs, surface))


def _daemon_settings(settings: Settings, order: OrderFromFile) -> DaemonSettings:
    """Return the settings of the daemon. Raises what :func:`listen_url` raises."""
    value = {name: setting.value for name, setting in settings.items()}
    return DaemonSettings(
        runtime_directory=Path(value["runtime_dir"]),
        keys_directory=Path(value["keys"]),
        state_directory=state_directory(os.environ),
        listens=tuple(
            listen_url(*parse_listen(text), value["insecure"], value["insecure_anywhere"])
            for text in value["listen"]
        ),
        insecure=value["insecure"],
        access=LocalAccess.parse(value["allow_users"]),
        timing=Timing(value["heartbeat_s"]),
        recent=RecentLimits(60 * value["recent_minutes"], value["recent_mib"] << 20),
        order=order,
        credential=_credential(os.environ),
    )


def _credential(environ: Mapping[str, str]) -> Path | None:
    """Return the key file of systemd's LoadCredential (systemd.exec(5)), or None."""
    directory = environ.get("CREDENTIALS_DIRECTORY")
    path = Path(directory) / CREDENTIAL if directory else None
    return path if path is not None and path.exists() else None


def _export_roots(settings: Settings) -> tuple[Path, ...]:
    return tuple(Path(text) for text in settings["export_root"].value)


def _warn_of_fixed(former: Settings, new: Settings) -> None:
    """Log a warning for each option that has changed and takes effect only after a restart."""
    for option in DAEMON_OPTIONS:
        if not option.reloadable and former[option.name].value != new[option.name].value:
            _log.warning("%s changed; it takes effect at the next start", option.key)


def _check_config(ctx: click.Context) -> None:
    """Print every option and its origin. Raises UsageError for a value that can't be used."""
    settings, order = in_force(ctx), standing_order(ctx)
    for line in shown(settings):
        click.echo(line)
    checked = _daemon_settings(settings, OrderFromFile(order))
    for text in settings["sink"].value:
        sink, options = parse_sink_option(text)
        sink.options_in_force(options, os.environ)
    click.echo(f"# runtime directory: {checked.runtime_directory}")
    click.echo(f"# keys: {checked.credential or checked.keys_directory}")
    for line in shown_order(order) if order else ():
        click.echo(line)


def _install_unit(user: bool, print_only: bool) -> None:
    files = user_files(os.environ) if user else system_files()
    if print_only:
        for file in files:
            click.echo(f"# --- {file.path}\n{file.text}")
        return
    for line in install(files):
        click.echo(line)
    click.echo(f"now run:\n{next_commands(user)}")


def _outputs(settings: Settings) -> tuple[Output, ...]:
    wanted: list[tuple[Any, dict[str, Any]]] = [
        parse_sink_option(text) for text in settings["sink"].value
    ]
    metric_log_dir = settings["metric_log_dir"].value
    if metric_log_dir:
        tensorboard, options = parse_sink_option("tensorboard")
        wanted.append((tensorboard, {**options, "dir": metric_log_dir}))
    directory = owner_directory(state_directory(os.environ), "daemon")
    return tuple(
        Output(
            sink_class, options, progress=ProgressDirectory(directory, f"{sink_class.NAME}-{place}")
        )
        for place, (sink_class, options) in enumerate(wanted)
    )


def _show_sinks() -> None:
    for name, text, options in describe_sinks():
        click.echo(f"{name}: {text}")
        for option in options:
            click.echo(f"  {option}")


def _say_ready(line: str) -> None:
    click.echo(line, err=True)


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler()
    handler.addFilter(RateFilter())
    handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("msmon")
    logger.addHandler(handler)
    logger.setLevel(level.upper())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon and return its exit code: 0 after a clean stop, 2 for a wrong option."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # ``obj`` keeps the words of the command line, because a reload parses them again.
        daemon.main(words, prog_name="msmon-daemon", standalone_mode=False, obj=words)
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
