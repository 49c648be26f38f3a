"""The daemon's settings: reads daemon.toml, and tells each value in force and its origin.

Click decides which origin wins: first the command line, then the environment, then the file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from msmon.commands.daemon.always_table import ALWAYS_TABLE, order_of_table
from msmon.commands.daemon.daemon_options import DAEMON_OPTIONS, DaemonOption
from msmon.daemon.standing.order import StandingOrder
from msmon.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_FILE = "daemon.toml"

_CONFIG = "msmon.config"
"""Key of the configuration's path in ``click.Context.meta``."""

_ALWAYS = "msmon.always"
"""Key of the standing order of the configuration there, or of None."""


@dataclass(frozen=True)
class Setting:
    """A value in force and its origin, for example "command line" or the path of the file."""

    value: Any
    origin: str


Settings = Mapping[str, Setting]
"""Option name → setting, for every option of the daemon."""


def default_config_path(environ: Mapping[str, str]) -> Path:
    """Return the path of this user's daemon.toml, which need not exist."""
    if os.geteuid() == 0:
        return Path("/etc/msmon") / CONFIG_FILE
    home = environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "msmon" / CONFIG_FILE


def use_config(ctx: click.Context, config: Path | None) -> None:
    """Make the values of a daemon.toml the defaults of the click command.

    ``config`` must exist; None means the default file, if there is one. Raises UsageError for
    a file with any wrong value, even if the command line overrides that value.
    """
    path = config or default_config_path(os.environ)
    in_file = read_config(path, must_exist=config is not None)
    table = in_file.pop(ALWAYS_TABLE, None)
    ctx.meta[_ALWAYS] = None if table is None else order_of_table(table, str(path))
    ctx.default_map = {
        option.name: in_file[option.key] for option in DAEMON_OPTIONS if option.key in in_file
    }
    ctx.meta[_CONFIG] = path


def standing_order(ctx: click.Context) -> StandingOrder | None:
    """Return the standing order of the configuration; None if it has none."""
    order: StandingOrder | None = ctx.meta[_ALWAYS]
    return order


def in_force(ctx: click.Context) -> dict[str, Setting]:
    """Return the value and the origin of every option, by name."""
    origins = {
        ParameterSource.COMMANDLINE: "command line",
        ParameterSource.DEFAULT_MAP: str(ctx.meta.get(_CONFIG)),
    }
    settings = {}
    for option in DAEMON_OPTIONS:
        source = ctx.get_parameter_source(option.name)
        if source is ParameterSource.ENVIRONMENT:
            origin = option.environment
        else:
            origin = origins.get(source, "default") if source else "default"
        settings[option.name] = Setting(ctx.params[option.name], origin)
    return settings


def read_config(path: Path, must_exist: bool) -> dict[str, Any]:
    """Return the checked values of a daemon.toml by key. Raises UsageError for a wrong one."""
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except FileNotFoundError:
        if must_exist:
            raise UsageError(f"the configuration {path} does not exist") from None
        return {}
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML: {error}") from None
    options = {option.key: option for option in DAEMON_OPTIONS}
    unknown = sorted(set(content) - set(options) - {ALWAYS_TABLE})
    if unknown:
        raise UsageError(
            f"{path}: unknown option {', '.join(unknown)}",
            f"known: {', '.join([*options, f'[{ALWAYS_TABLE}]'])}",
        )
    return {
        key: value if key == ALWAYS_TABLE else _from_file(options[key], value, str(path))
        for key, value in content.items()
    }


def _from_file(option: DaemonOption, value: Any, origin: str) -> Any:
    if not option.repeatable:
        return _check(option, value, origin)
    values = value if isinstance(value, list) else [value]
    return tuple(_check(option, item, origin) for item in values)


def _check(option: DaemonOption, value: Any, origin: str) -> Any:
    try:
        return option.check(value)
    except UsageError as error:
        raise UsageError(f"{origin}: {error.message}", error.next_step) from None


def shown(settings: Settings) -> list[str]:
    """Return one line per option: its name, its value and the origin of the value.

    The lines are a daemon.toml that sets what is in force.
    """
    lines = []
    for option in DAEMON_OPTIONS:
        setting = settings[option.name]
        if setting.value is None:
            lines.append(f"# {option.key} is not set")
        else:
            lines.append(f"{option.key} = {_as_toml(setting.value)}  # {setting.origin}")
    return lines


def _as_toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_as_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"{value:g}"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
