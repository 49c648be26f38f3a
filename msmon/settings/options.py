"""Every option of a command, defined once: name, type, range, default, key in msMonitor.

The command line, the wire and the drop-in compatibility layer derive from these
tables, so a number is checked by the same code wherever it enters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msmon.errors import UsageError
from msmon.records.filter import Filter
from msmon.records.kinds import format_kinds, parse_kinds

_NUMBER = re.compile(r"\s*[-+]?[0-9.]+([eE][-+]?[0-9]+)?\s*", re.ASCII)


@dataclass(frozen=True)
class Option:
    """One option. ``name`` is the wire and keyword name; ``flag`` what a user types.

    ``parse`` turns text or a plain value into the canonical plain value (what
    msgpack can carry) and raises UsageError; ranges are inclusive.
    """

    name: str
    flag: str
    help: str
    parse: Callable[[Any], Any]
    default: Any = None
    default_text: str = ""
    """What a help text calls the default; "" means the default itself."""
    msmonitor_key: str = ""
    """Its key in the texts of msMonitor; "" if msMonitor has no such option."""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    updatable: bool = False
    metavar: str = ""

    def check(self, value: Any) -> Any:
        """Return the canonical value. Raises UsageError that names the option."""
        try:
            parsed = self.parse(value)
        except UsageError as error:
            raise UsageError(f"{self.flag}: {error.message}", error.next_step) from None
        except (TypeError, ValueError, OverflowError):
            raise UsageError(
                f"{self.flag}: {value!r} is not a valid value", self._allowed()
            ) from None
        if isinstance(parsed, (int, float)) and not isinstance(parsed, bool):
            self._check_range(parsed, value)
        if self.choices and parsed not in self.choices:
            raise UsageError(f"{self.flag}: {value!r} is not a valid value", self._allowed())
        return parsed

    def _check_range(self, number: float, given: Any) -> None:
        too_small = self.minimum is not None and number < self.minimum
        too_large = self.maximum is not None and number > self.maximum
        if too_small or too_large:
            raise UsageError(f"{self.flag}: {given!r} is out of range", self._allowed())

    def _allowed(self) -> str:
        if self.choices:
            return f"allowed: {', '.join(self.choices)}"
        if self.minimum is not None or self.maximum is not None:
            least, most = (f"{limit:.12g}" for limit in (self.minimum, self.maximum))
            return f"allowed: {least} to {most}"
        return ""


def whole_number(value: Any) -> int:
    """Parse an integer; floats with a fraction and booleans are refused."""
    _refuse_odd_writing(value)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(value)
    return int(value)


def real_number(value: Any) -> float:
    """Parse a finite number. Raises ValueError for nan and infinities."""
    _refuse_odd_writing(value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _refuse_odd_writing(value: Any) -> None:
    """Raise ValueError for what only Python takes for a number: True, "1_0", other digits."""
    if isinstance(value, bool) or (isinstance(value, str) and not _NUMBER.fullmatch(value)):
        raise ValueError(value)


def text_up_to(length: int) -> Callable[[Any], str]:
    """Return a parser for text of at most ``length`` characters."""

    def parse(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(value)
        if len(value) > length:
            raise UsageError(f"{len(value)} characters are too many", f"allowed: up to {length}")
        return value

    return parse


def _files_to_keep(value: Any) -> int:
    """Parse -1 (all) or a number of files; fewer than two would delete what is being written."""
    number = whole_number(value)
    if number in (0, 1):
        raise UsageError(f"{value!r} is out of range", "allowed: -1 (all), or 2 and more")
    return number


def _kind_list(value: Any) -> str:
    return format_kinds(parse_kinds(text_up_to(1024)(value)))


def _filter_text(value: Any) -> str:
    return Filter.parse(text_up_to(1024)(value)).text


EXPORT_TYPES = ("DB", "Jsonl", "JsonlPerKind")
"""Values of ``--export-type``. JsonlPerKind has files per kind of line, for tools that make one
table of a file."""


def _export_type(value: Any) -> str:
    names = {name.lower(): name for name in EXPORT_TYPES}
    return names.get(value.lower(), value) if isinstance(value, str) else value


def flag(value: Any) -> bool:
    """Parse a switch: only True and False. Raises ValueError for anything else."""
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


MAX_U32 = 2**32 - 1

MONITOR_OPTIONS: tuple[Option, ...] = (
    Option(
        "kinds",
        "--kind",
        "Activity kinds to collect, a comma list.",
        _kind_list,
        default_text="those the filter names, else Marker",
        msmonitor_key="MSPTI_ACTIVITY_KIND",
        updatable=True,
        metavar="KIND[,KIND...]",
    ),
    Option(
        "filter",
        "--filter",
        "Keep only records whose name contains one of the texts, for example "
        '"Kernel:MatMul,Softmax;Communication:allReduce". Empty keeps all.',
        _filter_text,
        default="",
        msmonitor_key="NPU_MONITOR_FILTER",
        updatable=True,
        metavar="KIND:TEXT[,TEXT...][;KIND:...]",
    ),
    Option(
        "report_interval_s",
        "--report-interval-s",
        "Seconds covered by one window of statistics.",
        real_number,
        default=60.0,
        msmonitor_key="REPORT_INTERVAL_S",
        minimum=0.1,
        maximum=MAX_U32,
        updatable=True,
        metavar="SECONDS",
    ),
    Option(
        "duration_s",
        "--duration",
        "Stop by itself after this many seconds (fractions allowed; 0: run until stopped).",
        real_number,
        default=0.0,
        msmonitor_key="DURATION",
        minimum=0.0,
        maximum=MAX_U32,
        metavar="SECONDS",
    ),
    Option(
        "log_file",
        "--log-file",
        "Directory for exported records; without it only statistics are kept.",
        text_up_to(4096),
        default="",
        msmonitor_key="NPU_MONITOR_LOG_FILE",
        metavar="DIRECTORY",
    ),
    Option(
        "export_type",
        "--export-type",
        "File format of exported records.",
        _export_type,
        default="DB",
        msmonitor_key="NPU_MONITOR_EXPORT_TYPE",
        choices=EXPORT_TYPES,
    ),
    Option(
        "jsonl_rotate_lines",
        "--json-rotate-log-lines",
        "Lines per JSONL file.",
        whole_number,
        default=10_000,
        msmonitor_key="JSONL_ROTATE_LOG_LINES",
        minimum=100,
        maximum=500_000,
        metavar="LINES",
    ),
    Option(
        "jsonl_rotate_files",
        "--json-rotate-log-files",
        "JSONL files kept per process: 2 or more, or -1 for all.",
        _files_to_keep,
        default=-1,
        msmonitor_key="JSONL_ROTATE_LOG_FILES",
        minimum=-1,
        maximum=MAX_U32,
        metavar="FILES",
    ),
    Option(
        "ship_records",
        "ship_records",
        "Set by the daemon: raw records are wanted, not only statistics.",
        flag,
        default=False,
        updatable=True,
    ),
    Option(
        "order",
        "order",
        "Set by the daemon: the standing order that the session comes from.",
        text_up_to(64),
    ),
)
"""Options of npu-monitor. Those without dashes are never typed: the daemon sets them."""

MONITOR_OPTION: dict[str, Option] = {option.name: option for option in MONITOR_OPTIONS}


def check_fields(options: Mapping[str, Option], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Check the fields of a command against an option table.

    Returns canonical values of exactly the fields given. Raises UsageError naming
    an unknown field or the option whose value is wrong.
    """
    unknown = sorted(set(fields) - set(options))
    if unknown:
        raise UsageError(
            f"unknown option {', '.join(unknown)}", "the two sides may have different versions"
        )
    return {name: options[name].check(value) for name, value in fields.items()}
