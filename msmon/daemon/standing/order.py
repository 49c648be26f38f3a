"""One standing order: whose it is, for which processes, with which options."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from msmon.bus.messages import Selection
from msmon.daemon.process import Process
from msmon.daemon.selection import Chooser
from msmon.errors import UsageError
from msmon.sessions import MonitorSettings
from msmon.settings.options import MONITOR_OPTION, MONITOR_OPTIONS, check_fields

DEFAULT_INTERVAL_S = 10.0
"""Report interval of an order that names none: what those who judge the windows are made for."""

DEFAULT_NAME = "always"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_TYPED = {option.name: option for option in MONITOR_OPTIONS if option.flag.startswith("--")}


@dataclass(frozen=True)
class LeftAlone:
    """Processes that an order leaves alone, because a ``stop`` was for them.

    ``owner``: only those of this owner; empty: anybody's.
    """

    selection: Selection
    owner: str = ""


@dataclass(frozen=True)
class StandingOrder:
    """A standing order. ``owner`` is the text ``Peer.owner`` of who gave it.

    Whether that is an operator is asked each time it matters, because keys may be taken back.
    """

    name: str
    owner: str
    uid: int = -1
    gid: int = -1
    selection: Selection = field(default_factory=Selection)
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Options as ``npu-monitor start`` takes them, checked."""
    given_ns: int = 0
    """Wall clock."""
    left_alone: tuple[LeftAlone, ...] = ()
    file: str = ""
    """The daemon.toml that it stands in; empty: a command gave it."""

    @property
    def key(self) -> tuple[str, str]:
        """What no other order shares: its owner and its name."""
        return self.owner, self.name

    def selects(self, process: Process) -> bool:
        """Whether the order is for a process, as far as its selection and its exceptions say."""
        if not self._chooser.matches(process):
            return False
        owner = process.peer.owner
        return not any(
            chooser.matches(process)
            for of_owner, chooser in self._exceptions
            if of_owner in ("", owner)
        )

    def excepting(self, exception: LeftAlone) -> StandingOrder:
        """Return the order with one exception more; those that it includes are dropped."""
        kept = [
            former
            for former in self.left_alone
            if not (
                exception.owner in ("", former.owner)
                and covers(exception.selection, former.selection)
            )
        ]
        return replace(self, left_alone=(*kept, exception))

    def updated(self, fields: Mapping[str, Any]) -> StandingOrder:
        """Return the order with changed options. Raises what ``MonitorSettings.updated`` raises."""
        before = MonitorSettings.from_fields(self.fields)
        after = before.updated(fields)
        changed = {**self.fields, **fields}
        if after.kinds != before.kinds:
            changed["kinds"] = after.kinds
        return replace(self, fields=changed)

    @functools.cached_property
    def settings(self) -> MonitorSettings:
        """What a session that follows is to have in force."""
        return MonitorSettings.from_fields(self.fields).with_kinds()

    @functools.cached_property
    def _chooser(self) -> Chooser:
        return Chooser(self.selection)

    @functools.cached_property
    def _exceptions(self) -> list[tuple[str, Chooser]]:
        return [(item.owner, Chooser(item.selection)) for item in self.left_alone]


def check_name(name: Any) -> str:
    """Return a name that an order may have. Raises UsageError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"--name: {str(name)[:80]!r} can't name an order",
            "write up to 64 letters, digits and . _ -",
        )
    return name


def check_order_fields(fields: Mapping[str, Any], selection: Selection) -> dict[str, Any]:
    """Return the options of an order, with its own default of the interval. Raises UsageError."""
    if selection.pids:
        raise UsageError(
            "--always can't be for a --pid, which another process has tomorrow",
            "name --rank or --job-id, or neither for every process",
        )
    checked = check_fields(_TYPED, fields)
    if checked.pop("duration_s", 0.0):
        raise UsageError("--always has no --duration: it holds until stop", "leave one of them out")
    checked.setdefault("report_interval_s", DEFAULT_INTERVAL_S)
    MonitorSettings.from_fields(checked)
    return checked


def covers(outer: Selection, inner: Selection) -> bool:
    """Whether every process that ``inner`` selects is selected by ``outer``, now and later."""
    return all(
        not wide or (narrow and set(narrow) <= set(wide)) for wide, narrow in _pairs(outer, inner)
    )


def may_overlap(one: Selection, other: Selection) -> bool:
    """Whether one process, now or later, could be selected by both."""
    return all(not a or not b or set(a) & set(b) for a, b in _pairs(one, other))


def _pairs(one: Selection, other: Selection) -> list[tuple[list[Any], list[Any]]]:
    return [
        (one.pids, other.pids),
        (one.ranks, other.ranks),
        (one.job_ids, other.job_ids),
    ]


def selection_text(selection: Selection) -> str:
    """Return a selection as the options that make it; "every process" for none."""
    parts = [
        f"{flag} {','.join(map(str, values))}"
        for flag, values in (
            ("--pid", selection.pids),
            ("--rank", _spans(selection.ranks)),
            ("--job-id", selection.job_ids),
        )
        if values
    ]
    return " ".join(parts) or "every process"


def _spans(ranks: list[int]) -> list[str]:
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    return ["-".join(map(str, span)) for span in spans]


def options_text(fields: Mapping[str, Any]) -> str:
    """Return options as they are typed."""
    parts = []
    for name, value in fields.items():
        text = f"{value:g}" if isinstance(value, float) else str(value)
        quoted = f'"{text}"' if set(text) & set(" ;:*") or not text else text
        parts.append(f"{MONITOR_OPTION[name].flag} {quoted}")
    return " ".join(parts)
