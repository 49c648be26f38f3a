"""The runs of one session: which there are, their steps, and which operators have tags.

All bounds on what a peer can make the sink keep are here: its device ids, marker domains and
operator names are its own words.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from msmon.records.batch import printable
from msmon.records.collectives import COLLECTIVE_KINDS, size_text
from msmon.records.kinds import HOST_DEVICE_ID, ActivityKind
from msmon.records.windows import OTHER_NAME, Window, quantile_ns
from msmon.sessions import Gap, SessionInfo
from msmon.sinks.tensorboard.event_files import (
    EventFile,
    RunHistory,
    read_history,
    session_word,
)
from msmon.sinks.tensorboard.run_directories import RunDirectory

ADMITTED_PER_TOP = 4
"""A kind of a run gets tags for at most this many times ``top`` operators in its life."""

MAX_DOMAINS = 50
"""Marker domains of a run with a tag of their own, and communicators of a kind; further ones are
summed under ``other``."""

KINDS_WITH_DOMAINS = {kind.name for kind in (ActivityKind.Marker, *COLLECTIVE_KINDS)}

MAX_DEVICES = 64
"""Devices of a process with a run of their own. A node has 16."""

Scalars = dict[str, float]

_log = logging.getLogger(__name__)


class SessionRuns:
    """The runs that one session writes, by device id (-1: the host)."""

    def __init__(self, session: SessionInfo, directory: RunDirectory, top: int) -> None:
        self._session_id = session.session_id
        self._directory = directory
        self._top = top
        self._runs: dict[int, _Run] = {}
        self._losses: Scalars = {}
        self._last_gap_seq = 0
        self._devices = {path.name for path in directory.path.glob("device_*")}
        """Names of their runs; a set of at most MAX_DEVICES, save where more were there before."""
        self._left_out_window = -1

    @property
    def path(self) -> Path:
        return self._directory.path

    def write(self, window: Window) -> None:
        rows_by_device: dict[int, list[int]] = {}
        left_out: list[int] = []
        for row, device_id in enumerate(window.operators["device_id"].tolist()):
            if self._has_room(device_id):
                rows_by_device.setdefault(device_id, []).append(row)
            else:
                left_out.append(row)
        self._leave_out(window, left_out)
        times = _device_scalars(window)
        times[HOST_DEVICE_ID] = {**_step_scalars(window), **self._losses}
        for device_id, scalars in times.items():
            if scalars and self._has_room(device_id):
                rows_by_device.setdefault(device_id, [])
        for device_id, rows in rows_by_device.items():
            self._run(device_id).write(window, rows, times.get(device_id, {}))

    def count_gap(self, seq: int, gap: Gap) -> None:
        if seq <= self._last_gap_seq:
            return  # handed in again after a failure
        self._last_gap_seq = seq
        gaps, dropped = f"Gaps/{gap.stage}", f"Dropped/{gap.stage}"
        self._losses[gaps] = self._losses.get(gaps, 0) + 1
        if gap.records is not None:
            self._losses[dropped] = self._losses.get(dropped, 0) + sum(gap.records.values())

    def close(self) -> None:
        """Let go of the directory."""
        self._directory.release()

    def _has_room(self, device_id: int) -> bool:
        """Whether a device has a run, or gets one. Runs of earlier sessions count as well."""
        if device_id != HOST_DEVICE_ID and len(self._devices) < MAX_DEVICES:
            self._devices.add(_run_name(device_id))
        return device_id == HOST_DEVICE_ID or _run_name(device_id) in self._devices

    def _leave_out(self, window: Window, rows: list[int]) -> None:
        """Count the records of devices without a run, which the host run tells of."""
        if not rows or window.index <= self._left_out_window:
            return  # counted: the window is handed in again after a failure
        self._left_out_window = window.index
        records = sum(window.operators["count"][rows].tolist())
        if "Dropped/devices" not in self._losses:
            _log.warning(
                "session %s has more than %d devices; further ones are left out",
                self._session_id,
                MAX_DEVICES,
            )
        self._losses["Dropped/devices"] = self._losses.get("Dropped/devices", 0) + records

    def _run(self, device_id: int) -> _Run:
        if device_id not in self._runs:
            path = self.path / _run_name(device_id)
            self._runs[device_id] = _Run(path, self._session_id, self._top)
        return self._runs[device_id]


def _run_name(device_id: int) -> str:
    return "host" if device_id == HOST_DEVICE_ID else f"device_{device_id}"


SAME_END_S = 1e-3
"""Ends of a window that differ by no more than this are one: a file has them as floats."""


class _Run:
    """One TensorBoard run: its file, its steps, and the operators that have tags."""

    def __init__(self, path: Path, session_id: str, top: int) -> None:
        history = read_history(path)
        self._file = EventFile(path, session_id, history.newest_second)
        self._step = history.last_step
        continued = history.session == session_word(session_id)
        self._written_window = history.last_window if continued else -1
        self._written_end_s = history.last_end_s
        self._operators = _Admission(top, history)
        self._domains: dict[str, set[str]] = {kind: set() for kind in KINDS_WITH_DOMAINS}
        for tag in history.tags:
            kind, slash, domain = tag.partition("/")
            if slash and kind in KINDS_WITH_DOMAINS and domain != OTHER_NAME:
                self._domains[kind].add(domain)

    def write(self, window: Window, rows: list[int], extra: Scalars) -> None:
        if self._has(window):
            return
        scalars = {**self._totals(window, rows), **self._operator_scalars(window, rows), **extra}
        step = window.step if window.step >= 0 else self._step + 1
        self._file.append(window.index, window.end_ns, step, scalars)
        self._step = step
        self._written_window, self._written_end_s = window.index, window.end_ns / 1e9

    def _has(self, window: Window) -> bool:
        """Whether a window is written: it comes again after a restart, or where another run failed.

        One that ends later than it did before is new. So it is where a process seemed to be gone,
        and the daemon closed its window early. Its point then follows that of the first part.
        """
        if window.index != self._written_window:
            return window.index < self._written_window
        return window.end_ns / 1e9 <= self._written_end_s + SAME_END_S

    def _totals(self, window: Window, rows: list[int]) -> Scalars:
        totals: Scalars = {}
        for row in rows:
            operator = window.operators[row]
            kind = ActivityKind(int(operator["kind"])).name
            tags = [] if kind == ActivityKind.Marker.name else [kind]
            if kind in KINDS_WITH_DOMAINS:
                tags.append(f"{kind}/{self._domain(kind, window.names[operator['domain']])}")
            for tag in tags:
                totals[tag] = totals.get(tag, 0) + int(operator["total_ns"])
        return totals

    def _domain(self, kind: str, name: str) -> str:
        name, known = printable(name), self._domains[kind]
        if len(known) < MAX_DOMAINS:
            known.add(name)
        return name if name in known else OTHER_NAME

    def _operator_scalars(self, window: Window, rows: list[int]) -> Scalars:
        scalars: Scalars = {}
        for kind, kind_rows in _by_kind(window, rows).items():
            count = total = 0
            for row, name in self._operators.split(window, kind, kind_rows):
                operator = window.operators[row]
                if name is None:
                    count += int(operator["count"])
                    total += int(operator["total_ns"])
                    continue
                scalars.update(_tags(kind, name, int(operator["count"]), int(operator["total_ns"])))
                scalars[f"{kind}.p95_ns/{name}"] = float(quantile_ns(window, row, 0.95))
            if count:
                scalars.update(_tags(kind, OTHER_NAME, count, total))
        return scalars


class _Admission:
    """Which operators of each kind have tags of their own.

    A window admits the ``top`` operators that took most time in it, until a kind has
    ``ADMITTED_PER_TOP`` times as many. So a run has few tags however long it lasts. An operator
    that was admitted once keeps its tags, also after a restart.
    """

    def __init__(self, top: int, history: RunHistory) -> None:
        self._top = top
        self._names: dict[str, set[str]] = {}
        for tag in history.tags:
            kind, dot, rest = tag.partition(".count/")
            if dot and rest != OTHER_NAME:
                self._names.setdefault(kind, set()).add(rest)

    def split(self, window: Window, kind: str, rows: list[int]) -> Iterator[tuple[int, str | None]]:
        """Yield each row with its name, or None where it belongs to ``other``."""
        admitted = self._names.setdefault(kind, set())
        rows = sorted(rows, key=lambda row: -int(window.operators["total_ns"][row]))
        for place, row in enumerate(rows):
            name = _operator_name(window, kind, row)
            room = len(admitted) < self._top * ADMITTED_PER_TOP
            if place < self._top and room and name != OTHER_NAME:
                admitted.add(name)
            yield row, name if name in admitted else None


def _by_kind(window: Window, rows: list[int]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for row in rows:
        kind = ActivityKind(int(window.operators["kind"][row])).name
        grouped.setdefault(kind, []).append(row)
    return grouped


def _operator_name(window: Window, kind: str, row: int) -> str:
    operator = window.operators[row]
    name: str = window.names[operator["name"]]
    domain: str = window.names[operator["domain"]]
    if name == OTHER_NAME:
        return name
    if domain or kind == ActivityKind.Marker.name:
        name = f"{domain}/{name}"
    if operator["size_class"]:
        name = f"{name} {size_text(int(operator['size_class']))}"
    return printable(name)


def _step_scalars(window: Window) -> Scalars:
    if not window.steps:
        return {}
    return {
        "Step/count": float(window.steps),
        "Step/mean_ns": window.step_total_ns / window.steps,
        "Step/min_ns": float(window.step_min_ns),
        "Step/max_ns": float(window.step_max_ns),
    }


def _device_scalars(window: Window) -> dict[int, Scalars]:
    """Return by device which shares of the time it was busy, waited for others, and was idle."""
    scalars = {}
    for device_id, measured_ns, busy_ns, exposed_ns, idle_ns in window.devices.tolist():
        spent = {"busy": busy_ns, "exposed": exposed_ns, "idle": idle_ns}
        shares = {
            f"Device/{name}": time_ns / max(1, measured_ns) for name, time_ns in spent.items()
        }
        scalars[device_id] = shares if device_id != HOST_DEVICE_ID else {}
    return scalars


def _tags(kind: str, name: str, count: int, total_ns: int) -> Scalars:
    return {
        f"{kind}.count/{name}": float(count),
        f"{kind}.total_ns/{name}": float(total_ns),
        f"{kind}.mean_ns/{name}": total_ns / count if count else 0.0,
    }
