"""Where the daemon's settings come from: command line, over environment, over daemon.toml."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msmon.commands.daemon.options import DAEMON_OPTIONS, DaemonOption
from msmon.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_FILE = "daemon.toml"

_SWITCHES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class Setting:
    """A value in force, and where it was said."""

    value: Any
    origin: str


Settings = Mapping[str, Setting]
"""Option name → setting, for every option of the daemon."""


def default_config_path(environ: Mapping[str, str]) -> Path:
    """Return where this user's daemon.toml lies, if there is one."""
    if os.geteuid() == 0:
        return Path("/etc/msmon") / CONFIG_FILE
    home = environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "msmon" / CONFIG_FILE


def collect(
    typed: Mapping[str, Any], environ: Mapping[str, str], config: Path | None
) -> dict[str, Setting]:
    """Return all settings in force. ``config`` must exist; None: the default one, if any.

    Raises UsageError that names the option, and the file or variable it was found in.
    """
    path = config or default_config_path(environ)
    in_file = read_config(path, must_exist=config is not None)
    return {
        option.name: _setting(option, typed, environ, in_file, path) for option in DAEMON_OPTIONS
    }


def _setting(
    option: DaemonOption,
    typed: Mapping[str, Any],
    environ: Mapping[str, str],
    in_file: Mapping[str, Any],
    path: Path,
) -> Setting:
    if typed.get(option.name) not in (None, ()):
        return Setting(typed[option.name], "command line")
    if environ.get(option.environment):
        return Setting(_from_variable(option, environ[option.environment]), option.environment)
    if option.key in in_file:
        return Setting(in_file[option.key], str(path))
    return Setting(() if option.repeatable else option.default, "default")


def _from_variable(option: DaemonOption, text: str) -> Any:
    if option.repeatable:
        parts = [part.strip() for part in text.split(";")]
        return tuple(_check(option, part, option.environment) for part in parts if part)
    if option.is_switch:
        return _check(option, _SWITCHES.get(text.strip().lower(), text), option.environment)
    return _check(option, text, option.environment)


def read_config(path: Path, must_exist: bool) -> dict[str, Any]:
    """Return the checked content of a daemon.toml by key. Raises UsageError."""
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
    unknown = sorted(set(content) - set(options))
    if unknown:
        raise UsageError(
            f"{path}: unknown option {', '.join(unknown)}", f"known: {', '.join(options)}"
        )
    return {key: _from_file(options[key], value, str(path)) for key, value in content.items()}


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
    """Return one line per option: its name, the value in force, and where that was said."""
    lines = []
    for option in DAEMON_OPTIONS:
        setting = settings[option.name]
        lines.append(f"{option.key} = {_as_toml(setting.value)}  # {setting.origin}")
    return lines


def _as_toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_as_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"{value:g}"
    escaped = str("" if value is None else value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
