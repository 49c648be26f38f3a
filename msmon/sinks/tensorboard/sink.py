"""TensorBoard output: one run per host, rank and device, one point per window.

Tags as msMonitor's: the kind, and ``Marker/<domain>``; the value is the total
duration in ns within the window. Beyond them, for the operators that take most
time: ``<Kind>.mean_ns/<name>``, ``<Kind>.p95_ns/<name>``, ``<Kind>.count/<name>``,
``<Kind>.total_ns/<name>`` (markers: ``<domain>/<name>``); all others are summed under
``other``. Lost records: ``Dropped/<stage>`` and ``Gaps/<stage>`` in the host run, growing.
Values are 32-bit floats, as TensorBoard's scalars are (7 digits).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msmon.errors import SinkError
from msmon.records.batch import printable
from msmon.records.kinds import HOST_DEVICE_ID, ActivityKind
from msmon.records.windows import OTHER_NAME, Window, quantile_ns
from msmon.sessions import Gap, SessionEnd, SessionInfo
from msmon.settings.options import Option, text_up_to, whole_number
from msmon.sinks.base import SessionOutput, Sink
from msmon.sinks.tensorboard.event_files import EventFile, RunHistory, read_history
from msmon.sinks.tensorboard.run_directories import RunDirectory, claim_run_directory

ADMITTED_PER_TOP = 4
"""A kind of a run gets tags for at most this many times ``top`` operators in its life."""

MAX_MARKER_DOMAINS = 50
"""Marker domains of a run with a tag of their own; further ones are summed under ``other``."""

Scalars = dict[str, float]


class TensorBoardSink(Sink):
    """Writes an event per window into each run that the window has operators of.

    The module says which tags there are. Belongs to the output's thread.
    """

    NAME = "tensorboard"
    HELP = "Scalars per host, rank and device for TensorBoard."
    OPTIONS = (
        Option(
            "dir",
            "dir",
            "directory for `tensorboard --logdir`",
            text_up_to(4096),
            metavar="DIRECTORY",
        ),
        Option(
            "top",
            "top",
            "operators per kind and window with tags of their own",
            whole_number,
            default=10,
            minimum=0,
            maximum=1000,
            metavar="N",
        ),
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not options.get("dir"):
            raise SinkError("sink tensorboard needs a directory", "write tensorboard:dir=DIRECTORY")
        self._root = Path(options["dir"]).absolute()
        _check_writable(self._root)
        self._top = int(options.get("top", 10))
        self._sessions: dict[str, _SessionRuns] = {}

    def open_session(self, session: SessionInfo) -> SessionOutput:
        """Claim the directory of the session's process. Raises OSError."""
        known = self._sessions.get(session.session_id)
        if known is None:
            directory = claim_run_directory(self._root, session.process)
            known = _SessionRuns(session, directory, self._top)
            self._sessions[session.session_id] = known
        return SessionOutput(files=(str(known.path),))

    def write_window(self, session_id: str, seq: int, window: Window) -> None:
        """Write the window's totals and operators; it is on disk when this returns."""
        self._sessions[session_id].write(window)

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        """Count the gap. It shows with the next window, as only events have a time and step."""
        self._sessions[session_id].count_gap(seq, gap)

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        """Close the files and let go of the directory."""
        runs = self._sessions.pop(session_id, None)
        if runs is not None:
            runs.close()

    def close(self) -> None:
        """Close everything. A later sink continues the runs."""
        for runs in self._sessions.values():
            runs.close()
        self._sessions.clear()


def _check_writable(directory: Path) -> None:
    """Make the directory. Raises SinkError, so that a daemon does not start in vain."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        in_the_way = isinstance(error, (FileExistsError, NotADirectoryError))
        reason = "a file is in the way" if in_the_way else error.strerror
        raise SinkError(
            f"can't write TensorBoard data to {directory}: {reason}", "choose another directory"
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise SinkError(
            f"can't write TensorBoard data to {directory}: no permission",
            f"let uid {os.geteuid()} write there, or choose another directory",
        )


class _SessionRuns:
    """The runs that one session writes, by device id (-1: the host)."""

    def __init__(self, session: SessionInfo, directory: RunDirectory, top: int) -> None:
        self._session_id = session.session_id
        self._directory = directory
        self._top = top
        self._runs: dict[int, _Run] = {}
        self._losses: Scalars = {}
        self._last_gap_seq = 0

    @property
    def path(self) -> Path:
        return self._directory.path

    def write(self, window: Window) -> None:
        rows_by_device: dict[int, list[int]] = {}
        for row, device_id in enumerate(window.operators["device_id"].tolist()):
            rows_by_device.setdefault(device_id, []).append(row)
        if self._losses:
            rows_by_device.setdefault(HOST_DEVICE_ID, [])
        for device_id, rows in rows_by_device.items():
            extra = self._losses if device_id == HOST_DEVICE_ID else {}
            self._run(device_id).write(window, rows, extra)

    def count_gap(self, seq: int, gap: Gap) -> None:
        if seq <= self._last_gap_seq:
            return  # handed in again after a failure
        self._last_gap_seq = seq
        gaps, dropped = f"Gaps/{gap.stage}", f"Dropped/{gap.stage}"
        self._losses[gaps] = self._losses.get(gaps, 0) + 1
        if gap.records is not None:
            self._losses[dropped] = self._losses.get(dropped, 0) + sum(gap.records.values())

    def close(self) -> None:
        for run in self._runs.values():
            run.close()
        self._directory.release()

    def _run(self, device_id: int) -> _Run:
        if device_id not in self._runs:
            name = "host" if device_id == HOST_DEVICE_ID else f"device_{device_id}"
            self._runs[device_id] = _Run(self.path / name, self._session_id, self._top)
        return self._runs[device_id]


class _Run:
    """One TensorBoard run: its file, its steps, and the operators that have tags."""

    def __init__(self, path: Path, session_id: str, top: int) -> None:
        history = read_history(path)
        self._file = EventFile(path, session_id, history.newest_second)
        self._step = history.last_step
        self._written_end_ns = history.last_end_ns if history.session_id == session_id else 0
        self._operators = _Admission(top, history)
        tags = (tag.partition("/") for tag in history.tags)
        self._domains = {rest for kind, _, rest in tags if kind == ActivityKind.Marker.name}
        self._domains.discard(OTHER_NAME)

    def write(self, window: Window, rows: list[int], extra: Scalars) -> None:
        if window.end_ns <= self._written_end_ns:
            return  # it is written: sent again after a restart, or after another run failed
        scalars = {**self._totals(window, rows), **self._operator_scalars(window, rows), **extra}
        step = window.step if window.step >= 0 else self._step + 1
        self._file.append(window.end_ns, step, scalars)
        self._step = step
        # as precise as the wall time in the file, so that a restart compares alike
        self._written_end_ns = round(window.end_ns / 1e9 * 1e9)

    def close(self) -> None:
        self._file.close()

    def _totals(self, window: Window, rows: list[int]) -> Scalars:
        totals: Scalars = {}
        for row in rows:
            operator = window.operators[row]
            tag = ActivityKind(int(operator["kind"])).name
            if tag == ActivityKind.Marker.name:
                tag = f"{tag}/{self._domain(window.names[operator['domain']])}"
            totals[tag] = totals.get(tag, 0) + int(operator["total_ns"])
        return totals

    def _domain(self, name: str) -> str:
        name = printable(name)
        if len(self._domains) < MAX_MARKER_DOMAINS:
            self._domains.add(name)
        return name if name in self._domains else OTHER_NAME

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
    name = window.names[window.operators["name"][row]]
    if kind == ActivityKind.Marker.name and name != OTHER_NAME:
        name = f"{window.names[window.operators['domain'][row]]}/{name}"
    return printable(name)


def _tags(kind: str, name: str, count: int, total_ns: int) -> Scalars:
    return {
        f"{kind}.count/{name}": float(count),
        f"{kind}.total_ns/{name}": float(total_ns),
        f"{kind}.mean_ns/{name}": total_ns / count if count else 0.0,
    }
