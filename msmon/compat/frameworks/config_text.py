"""Commands as text that a framework passes to its ranks: lines of KEY=VALUE.

torch_npu and MindSpore split the text into lines and each line at "=". They drop lines that
don't have exactly two parts, and strip blanks. Therefore values are percent-encoded here.
Keys are those of msMonitor, from the option tables. msmon's own keys must not contain PROFILE
or ACTIVITIES, because MindSpore changes such keys (``dynamic_profiler_utils.py``).
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msmon.bus.words import MonitorAction
from msmon.errors import UsageError
from msmon.settings.options import MONITOR_OPTIONS, Option, check_fields
from msmon.settings.trace_options import TRACE_OPTIONS

START_KEY, STOP_KEY = "NPU_MONITOR_START", "NPU_MONITOR_STOP"
"""A text with START_KEY is a command of npu-monitor to the frameworks, whatever its value."""

REQUEST_KEY = "MSMON_REQUEST_ID"
"""Only msmon's texts have this key. In them values are encoded, and an absent key means that the
command doesn't change that option."""
LAUNCH_KEY = "MSMON_LAUNCH"
RANKS_KEY = "MSMON_RANKS"

_SAFE = "!\"#$&'()*+,/:;<>?@[\\]^`{|}~"
"""Characters that need no encoding, beside letters and digits. "=", "%" and blanks need it."""


@dataclass(frozen=True)
class FrameworkCommand:
    """A command of npu-monitor as a rank receives it through its framework."""

    action: MonitorAction | None
    """None: start, or update where monitoring runs already. msMonitor knows no update, so its
    text for a change is the same as for a start."""
    fields: dict[str, Any] = field(default_factory=dict)
    request_id: str = ""
    launch: str = ""
    ranks: tuple[int, ...] = ()

    def is_for(self, rank: int, launch: str) -> bool:
        """Return whether the command is for this rank of this launch.

        A text without ranks is for all ranks; one without a launch is for every launch.
        """
        return (not self.ranks or rank in self.ranks) and (
            not self.launch or not launch or self.launch == launch
        )


def monitor_text(command: FrameworkCommand) -> str:
    """Return the text of an npu-monitor command. Options that it doesn't change are absent."""
    lines = [
        f"{START_KEY}={_bool(command.action is MonitorAction.START)}",
        f"{STOP_KEY}={_bool(command.action is MonitorAction.STOP)}",
        f"{REQUEST_KEY}={_encode(command.request_id)}",
        f"{LAUNCH_KEY}={_encode(command.launch)}",
        f"{RANKS_KEY}={','.join(map(str, command.ranks))}",
    ]
    for option in MONITOR_OPTIONS:
        if option.name in command.fields:
            lines.append(f"{_key(option)}={_encode(_plain(command.fields[option.name]))}")
    return "\n".join(lines) + "\n"


def monitor_command(config: Mapping[str, str]) -> FrameworkCommand:
    """Return the command in a parsed text, which msmon or msMonitor's daemon has made.

    Raises UsageError for a value that its option doesn't allow.
    """
    ours = REQUEST_KEY in config
    fields = {}
    for option in MONITOR_OPTIONS:
        text = config.get(_key(option))
        if text is None or (not ours and not _mentioned(option, text)):
            continue
        fields[option.name] = _value(option, urllib.parse.unquote(text) if ours else text)
    return FrameworkCommand(
        _action(config, ours),
        check_fields({option.name: option for option in MONITOR_OPTIONS}, fields),
        urllib.parse.unquote(config.get(REQUEST_KEY, "")),
        urllib.parse.unquote(config.get(LAUNCH_KEY, "")),
        tuple(int(rank) for rank in config.get(RANKS_KEY, "").split(",") if rank.isdecimal()),
    )


def trace_text(fields: Mapping[str, Any], ranks: tuple[int, ...] = ()) -> str:
    """Return the text that makes the framework itself take a trace.

    Its parser knows no encoding. Raises UsageError for a value that it would change.
    """
    lines = ["PROFILE_START_ITERATION=0"]
    for option in TRACE_OPTIONS:
        text = _trace_value(option, fields.get(option.name, option.default))
        if "=" in text or "\n" in text or text != text.strip():
            raise UsageError(
                f"{option.flag}: {text!r} can't pass through the framework",
                "choose one without '=', line breaks and blanks at its ends",
            )
        lines.append(f"{option.msmonitor_key}={text}")
    lines.append(f"PROFILE_IS_RANK={_bool(bool(ranks))}")
    lines.append(f"PROFILE_RANK_LIST={','.join(map(str, ranks)) or 'None'}")
    return "\n".join(lines) + "\n"


_SWITCHES = (START_KEY, STOP_KEY)


def _action(config: Mapping[str, str], ours: bool) -> MonitorAction | None:
    starting, stopping = (config.get(key, "").lower() in ("true", "1") for key in _SWITCHES)
    if stopping:
        return MonitorAction.STOP
    if not starting:
        return MonitorAction.UPDATE
    return MonitorAction.START if ours else None


def _key(option: Option) -> str:
    return option.msmonitor_key or f"MSMON_{option.name.upper()}"


def _mentioned(option: Option, text: str) -> bool:
    """Return whether the value sets an option. msMonitor's texts always have all keys."""
    return text != "" and not (option.name == "report_interval_s" and float(text) == 0)


def _value(option: Option, text: str) -> Any:
    return text == "true" if isinstance(option.default, bool) else text


def _plain(value: Any) -> str:
    return _bool(value) if isinstance(value, bool) else str(value)


def _trace_value(option: Option, value: Any) -> str:
    if option.name == "gc_detect_threshold" and value < 0:
        return "None"
    return _plain(value) or "None"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _encode(text: str) -> str:
    return urllib.parse.quote(text, safe=_SAFE)
