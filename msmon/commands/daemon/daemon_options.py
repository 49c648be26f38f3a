"""Every option of ``msmon-daemon``, defined once for command line, environment and daemon.toml.

Click takes a value from the first of these places that has one. Example: ``--heartbeat-s 2``
is ``MSMON_DAEMON_HEARTBEAT_S=2`` in the environment and ``heartbeat-s = 2`` in the file. An
option that may be repeated is a list in the file; in its variable semicolons separate the items.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from msmon.bus.endpoints import DEFAULT_PORT, runtime_directory
from msmon.bus.keys import keys_directory
from msmon.commands.asking.parameters import checked
from msmon.daemon.recent.recent_windows import RecentLimits
from msmon.daemon.timing import Timing
from msmon.errors import UsageError
from msmon.settings.options import Option, flag, real_number, text_up_to, whole_number

Command = TypeVar("Command", bound=Callable[..., Any])

SWITCHES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
"""Values of the variable of an option that takes no value on the command line."""

LOG_LEVELS = ("debug", "info", "warning", "error")

_text = text_up_to(4096)


@dataclass(frozen=True)
class DaemonOption(Option):
    """An option of the daemon. SIGHUP applies a new value only if it is ``reloadable``.

    A ``default`` that depends on the user or the environment is a function, which Click calls.
    """

    variable: str = ""
    """Its environment variable; "" means MSMON_DAEMON_ and its name in capitals."""
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
        """True if it takes no value on the command line."""
        return self.parse is flag


def _path(value: Any) -> str:
    text = _text(value)
    if not text:
        raise ValueError(value)
    return os.path.abspath(Path(text).expanduser())


def _users(value: Any) -> str:
    text = _text(value)
    if not text:
        raise UsageError("'' names nobody", "write nobody, everybody or the name of a group")
    return text


def _default_users() -> str:
    return "everybody" if os.geteuid() == 0 else "nobody"


def _default_runtime_directory() -> str:
    return str(runtime_directory(os.environ).absolute())


def _default_keys() -> str:
    return str(keys_directory(os.environ).absolute())


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
        "Directory of the local socket.",
        _path,
        default=_default_runtime_directory,
        default_text="MSMON_RUNTIME_DIR, or /run/msmon for root",
        metavar="PATH",
        variable="MSMON_RUNTIME_DIR",
    ),
    DaemonOption(
        "keys",
        "--keys",
        "Directory of the keys.",
        _path,
        default=_default_keys,
        default_text="MSMON_KEYS_DIR, or /etc/msmon/keys for root",
        metavar="PATH",
        variable="MSMON_KEYS_DIR",
    ),
    DaemonOption(
        "allow_users",
        "--allow-users",
        "Which other local users may connect, for their own processes.",
        _users,
        default=_default_users,
        default_text="everybody for a daemon of root, else nobody",
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
        "recent_minutes",
        "--recent-minutes",
        "How long windows are kept for those who look at the jobs; 0: not at all.",
        real_number,
        default=RecentLimits().keep_s / 60,
        minimum=0,
        maximum=1440,
        metavar="MINUTES",
    ),
    DaemonOption(
        "recent_mib",
        "--recent-mib",
        "Most memory for these windows; half of it for one local user.",
        whole_number,
        default=RecentLimits().most_bytes >> 20,
        minimum=1,
        maximum=16384,
        metavar="MIB",
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


class _Value(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic in newer ones
    """Lets the option check a value, whatever place it comes from."""

    name = "value"

    def __init__(self, option: DaemonOption) -> None:
        self._option = option
        self._check = checked(option)

    def split_envvar_value(self, rv: str) -> list[str]:
        """Return the items in the variable of a repeatable option. Click calls this."""
        return [part.strip() for part in rv.split(";") if part.strip()]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the checked value. Raises UsageError that names the option or its variable."""
        if not _is_from_variable(param, ctx):
            return self._check(value)
        try:
            return self._check(self.from_text(value))
        except UsageError as error:
            origin = self._option.environment
            raise UsageError(f"{origin}: {error.message}", error.next_step) from None

    def from_text(self, text: str) -> Any:
        """Return the value that the text of a variable means."""
        return text


class _Switch(_Value, click.types.BoolParamType):
    """The type of a switch. It is a BoolParamType, because click demands that of a switch."""

    def from_text(self, text: str) -> Any:
        """Return True or False, or the text itself if it means neither; the check refuses it."""
        return SWITCHES.get(text.strip().lower(), text)


def _is_from_variable(param: click.Parameter | None, ctx: click.Context | None) -> bool:
    if param is None or ctx is None or param.name is None:
        return False
    return ctx.get_parameter_source(param.name) is ParameterSource.ENVIRONMENT


def daemon_options(command: Command) -> Command:
    """Decorate a click command with all options. It gets their values by keyword."""
    for option in reversed(DAEMON_OPTIONS):
        command = _click_option(option)(command)
    return command


def _click_option(option: DaemonOption) -> Callable[[Command], Command]:
    common: dict[str, Any] = {"envvar": option.environment, "default": option.default}
    if option.is_switch:
        return click.option(
            option.flag, option.name, type=_Switch(option), is_flag=True, help=option.help, **common
        )
    default_text = option.default_text or option.default
    default = f" [default: {default_text}]" if default_text else ""
    return click.option(
        option.flag,
        option.name,
        type=_Value(option),
        multiple=option.repeatable,
        metavar=option.metavar or "|".join(option.choices),
        help=option.help + default,
        **common,
    )
