"""Every option of ``msmon-daemon``, once: command line, environment and daemon.toml read this.

In the file an option has its name on the command line without the dashes. Repeatable ones
are lists there, and parts between semicolons in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from msmon.bus.endpoints import DEFAULT_PORT
from msmon.commands.parameters import checked
from msmon.daemon.timing import Timing
from msmon.settings.options import Option, flag, real_number, text_up_to

Command = TypeVar("Command", bound=Callable[..., Any])

LOG_LEVELS = ("debug", "info", "warning", "error")

_text = text_up_to(4096)


@dataclass(frozen=True)
class DaemonOption(Option):
    """An option of the daemon. ``reloadable``: SIGHUP puts a new value into force."""

    variable: str = ""
    """Its environment variable, where that isn't MSMON_DAEMON_NAME."""
    repeatable: bool = False
    reloadable: bool = False

    @property
    def key(self) -> str:
        """Its name in daemon.toml."""
        return self.flag.lstrip("-")

    @property
    def environment(self) -> str:
        """Its environment variable."""
        return self.variable or f"MSMON_DAEMON_{self.name.upper()}"

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value on the command line."""
        return self.parse is flag


def _path(value: Any) -> str:
    text = _text(value)
    if not text:
        raise ValueError(value)
    return os.path.abspath(Path(text).expanduser())


DAEMON_OPTIONS: tuple[DaemonOption, ...] = (
    DaemonOption(
        "listen",
        "--listen",
        f"Also serve other machines over TCP (port {DEFAULT_PORT} unless given). Repeatable.",
        _text,
        metavar="HOST[:PORT]",
        repeatable=True,
    ),
    DaemonOption(
        "runtime_dir",
        "--runtime-dir",
        "Directory of the local socket [default: MSMON_RUNTIME_DIR, or /run/msmon for root].",
        _path,
        metavar="PATH",
        variable="MSMON_RUNTIME_DIR",
    ),
    DaemonOption(
        "keys",
        "--keys",
        "Directory of the keys [default: MSMON_KEYS_DIR, or /etc/msmon/keys for root].",
        _path,
        metavar="PATH",
        variable="MSMON_KEYS_DIR",
    ),
    DaemonOption(
        "allow_users",
        "--allow-users",
        "Which other local users may connect, for their own processes "
        "[default: everybody for a daemon of root, else nobody].",
        _text,
        metavar="nobody|everybody|GROUP",
    ),
    DaemonOption(
        "export_root",
        "--export-root",
        "Directory below which everybody may export. Repeatable.",
        _path,
        metavar="PATH",
        repeatable=True,
        reloadable=True,
    ),
    DaemonOption(
        "sink",
        "--sink",
        "Write the data of all sessions to this output. Repeatable; `--sink help` lists them.",
        _text,
        metavar="NAME[:key=value,...]",
        repeatable=True,
    ),
    DaemonOption(
        "metric_log_dir",
        "--metric-log-dir",
        "Write TensorBoard scalars there: short for --sink tensorboard:dir=DIRECTORY.",
        _path,
        metavar="PATH",
    ),
    DaemonOption(
        "insecure",
        "--insecure",
        "No encryption, no keys; clients must say it too.",
        flag,
        default=False,
    ),
    DaemonOption(
        "insecure_anywhere",
        "--insecure-anywhere",
        "Let --insecure listen beyond loopback addresses.",
        flag,
        default=False,
    ),
    DaemonOption(
        "heartbeat_s",
        "--heartbeat-s",
        "Seconds between signs of life of a process; after four without one it is lost.",
        real_number,
        default=Timing().heartbeat_s,
        minimum=0.05,
        maximum=60.0,
        metavar="SECONDS",
    ),
    DaemonOption(
        "log_level",
        "--log-level",
        "On stderr.",
        _text,
        default="info",
        choices=LOG_LEVELS,
        reloadable=True,
    ),
)


def daemon_options(command: Command) -> Command:
    """Add all of them to a click command, which gets them by name; None: not typed."""
    for option in reversed(DAEMON_OPTIONS):
        command = _click_option(option)(command)
    return command


def _click_option(option: DaemonOption) -> Callable[[Command], Command]:
    if option.is_switch:
        return click.option(
            option.flag, option.name, is_flag=True, flag_value=True, default=None, help=option.help
        )
    default = f" [default: {option.default}]" if option.default else ""
    return click.option(
        option.flag,
        option.name,
        type=checked(option),
        multiple=option.repeatable,
        metavar=option.metavar or "|".join(option.choices),
        help=option.help + default,
    )
