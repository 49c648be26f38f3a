"""Windows as JSON lines: one per window and (kind, device, operator), and some on all of it.

The keys are msmon's own. Texts come from the jobs, so JSON escapes what does not print.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from msmon.errors import SinkError
from msmon.records.batch import printable
from msmon.records.window_header import WindowHeader
from msmon.records.windows import OperatorRow, Window, operator_rows, quantile_ns
from msmon.sessions import DropStage, Gap, SessionEnd, SessionInfo
from msmon.settings.options import Option, text_up_to
from msmon.sinks.base import SessionOutput, Sink
from msmon.sinks.regular_files import open_regular

_WHOLE_WINDOW = {
    *("received", "kept", "untimed", "overflow_names", "digest_step", "digest_ns"),
    *("steps", "step_total_ns", "step_min_ns", "step_max_ns"),
}
"""Numbers of a whole window. A line is about one operator, and its reader would sum them up."""

WINDOW_KEYS = {
    item.name: "window" if item.name == "index" else item.name
    for item in dataclasses.fields(WindowHeader)
    if item.name not in _WHOLE_WINDOW
}
"""Field of a window's header → key. A field added to the header gets a key by itself."""

OPERATOR_KEYS = {
    item.name: "device" if item.name == "device_id" else item.name
    for item in dataclasses.fields(OperatorRow)
    if item.name not in ("index", "kind")
}
"""Field of an operator → key. A field added to :class:`OperatorRow` gets a key by itself."""

QUANTILES = {"p50_ns": 0.50, "p95_ns": 0.95, "p99_ns": 0.99}
STDOUT = "-"

MAX_WINDOW_BYTES = 16 << 20
"""Lines of one window. A long name that many rows share makes much of a small message."""

MAX_COLLECTIVES_BYTES = 1 << 20
"""Line of the single collectives of a window, which is left out where it would be longer."""

MAX_HELD_BYTES = 16 << 20
"""Lines that wait for a commit. What comes then goes out before it."""

_PIECE_LINES = 1000


class MetricsJsonSink(Sink):
    """Appends lines to one file, or prints them.

    The lines of one commit go out in few writes, so that a reader mostly sees whole lines. They
    go out earlier where too many wait. After an error the file is cut back to the last commit,
    because all that was given since is given again. Where that can't be done, because it is no file
    or somebody else has added to it, a line may be torn or there twice.
    """

    NAME = "metrics-json"
    HELP = "Windows as JSON lines, one per window, kind, device and operator."
    OPTIONS = (
        Option(
            "path",
            "path",
            "file to append to (-: standard output)",
            text_up_to(4096),
            default=STDOUT,
            metavar="FILE",
        ),
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._sessions: dict[str, SessionInfo] = {}
        self._lines: list[bytes] = []
        self._held_bytes = 0
        self._failure: OSError | None = None
        """Why lines went out in vain before the commit, which then fails."""
        self._before = b""
        path = self.options.get("path", STDOUT)
        self._descriptor = sys.stdout.fileno() if path == STDOUT else _open_for_append(path)
        self._owned = path != STDOUT
        self._committed_bytes = self._length()
        self._end_bytes = self._committed_bytes
        """Where the file ends if nobody else writes to it."""

    def open_session(self, session: SessionInfo) -> SessionOutput:
        self._sessions[session.session_id] = session
        return SessionOutput()

    def write_window(self, session_id: str, seq: int, window: Window) -> None:
        process = self._sessions[session_id].process
        common = {
            "session": session_id,
            "host": process.host,
            "pid": process.pid,
            "rank": process.rank,
            **{key: getattr(window, name) for name, key in WINDOW_KEYS.items()},
        }
        size_bytes = 0
        self._add_whole(common, window)
        rows = operator_rows(window)
        for index, row in enumerate(rows):
            fields = {
                **common,
                "kind": row.kind.name,
                **{key: getattr(row, name) for name, key in OPERATOR_KEYS.items()},
                "mean_ns": row.mean_ns,
                **{key: quantile_ns(window, index, q) for key, q in QUANTILES.items()},
            }
            line = _line(fields)
            size_bytes += len(line)
            if size_bytes > MAX_WINDOW_BYTES:
                self.write_gap(session_id, seq, _gap_of(window, rows[index:]))
                break
            self._add(line)

    def _add_whole(self, common: Mapping[str, Any], window: Window) -> None:
        """Add what is known of the steps, of each device, and of the single collectives."""
        if window.steps:
            steps = {
                "count": window.steps,
                "total_ns": window.step_total_ns,
                "min_ns": window.step_min_ns,
                "max_ns": window.step_max_ns,
            }
            self._add(_line({**common, "kind": "steps", **steps}))
        names = window.devices.dtype.names or ()
        for numbers in window.devices.tolist():
            fields = dict(zip(names, numbers))
            device = {"device": fields.pop("device_id"), **fields}
            self._add(_line({**common, "kind": "device", **device}))
        if len(window.collectives):
            fields = {"digest_step": window.digest_step, "collectives": _collectives(window)}
            line = _line({**common, "kind": "collectives", **fields})
            if len(line) <= MAX_COLLECTIVES_BYTES:
                self._add(line)

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        fields = {
            "session": session_id,
            "kind": "gap",
            "stage": gap.stage,
            "start_ns": gap.start_ns,
            "end_ns": gap.end_ns,
            "records": gap.records,
            "reason": gap.reason,
        }
        self._add(_line(fields))

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        self._sessions.pop(session_id, None)

    def commit(self) -> None:
        self._write_out()
        failure, self._failure = self._failure, None
        if failure is not None:
            self._cut_back()
            raise failure
        self._committed_bytes = self._end_bytes = self._length()

    def close(self) -> None:
        if self._owned:
            os.close(self._descriptor)

    def _add(self, line: bytes) -> None:
        self._lines.append(line)
        self._held_bytes += len(line)
        if self._held_bytes >= MAX_HELD_BYTES:
            self._write_out()

    def _write_out(self) -> None:
        """Write what waits. Nothing more is written after an error, until the commit tells it."""
        lines, self._lines, self._held_bytes = self._lines, [], 0
        try:
            while lines and self._failure is None:
                self._write(b"".join(lines[:_PIECE_LINES]))
                del lines[:_PIECE_LINES]
        except OSError as error:
            self._failure = error

    def _write(self, piece: bytes) -> None:
        view = memoryview(self._before + piece)
        # A full disk may tear a line. The next write must not continue it, so it begins with
        # the end of a line, until a write was whole.
        self._before = b"\n"
        while view:
            written = os.write(self._descriptor, view)
            self._end_bytes += written
            view = view[written:]
        self._before = b""

    def _cut_back(self) -> None:
        """Remove what was written since the last commit, unless others have written too."""
        if self._owned and self._length() == self._end_bytes:
            os.ftruncate(self._descriptor, self._committed_bytes)
            self._end_bytes, self._before = self._committed_bytes, b""

    def _length(self) -> int:
        return os.fstat(self._descriptor).st_size if self._owned else 0


def _line(fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return printable(text).encode("utf-8", "backslashreplace") + b"\n"


def _collectives(window: Window) -> list[dict[str, Any]]:
    digest, names = window.collectives, window.names
    start_ns = window.start_ns + digest["start_us"].astype(np.int64) * 1000
    columns = (
        *(digest[name].tolist() for name in ("group", "operation", "size_class", "number")),
        start_ns.tolist(),
        digest["lasted_ns"].astype(np.int64).tolist(),
    )
    return [
        {
            "domain": names[group],
            "name": names[operation],
            "size_class": size_class,
            "number": number,
            "start_ns": begin_ns,
            "lasted_ns": lasted_ns,
        }
        for group, operation, size_class, number, begin_ns, lasted_ns in zip(*columns)
    ]


def _gap_of(window: Window, left_out: list[OperatorRow]) -> Gap:
    """Return the gap for the operators of a window that are not written."""
    records: dict[str, int] = {}
    for row in left_out:
        records[row.kind.name] = records.get(row.kind.name, 0) + row.count
    reason = "a window with more lines than are written"
    return Gap(DropStage.SINK, window.start_ns, window.end_ns, records, reason)


def _open_for_append(path: str) -> int:
    """Open a file for appending. A last line that a crash has torn is ended first.

    Raises SinkError.
    """
    try:
        descriptor = open_regular(Path(path), os.O_CREAT | os.O_APPEND | os.O_RDWR)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            os.write(descriptor, b"\n")
    except OSError as error:
        raise SinkError(f"can't write {path}: {error.strerror}", "choose another file") from error
    return descriptor
