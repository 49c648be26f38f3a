"""Windows as lines of the daemon's log: the operators that took most time."""

from __future__ import annotations

import logging

import numpy as np

from msmon.logs import escaped
from msmon.records.batch import printable
from msmon.records.kinds import ActivityKind
from msmon.records.windows import Window
from msmon.sessions import Gap, SessionEnd, SessionInfo
from msmon.settings.options import Option, whole_number
from msmon.sinks.base import SessionOutput, Sink

_log = logging.getLogger("msmon.windows")


class LogSink(Sink):
    """Writes a line per event of a session, per window, and per operator of the window's top.

    The top are the operators that took most time in the window.
    """

    NAME = "log"
    HELP = "Windows of statistics as lines of the daemon's log."
    OPTIONS = (
        Option(
            "top",
            "top",
            "operators shown per window",
            whole_number,
            default=5,
            minimum=0,
            maximum=1000,
            metavar="N",
        ),
    )

    def open_session(self, session: SessionInfo) -> SessionOutput:
        process = session.process
        self._log(session.session_id, f"opened: pid {process.pid} rank {process.rank}")
        return SessionOutput()

    def write_window(self, session_id: str, seq: int, window: Window) -> None:
        seconds = (window.end_ns - window.start_ns) / 1e9
        kept = ", ".join(f"{kind} {count}" for kind, count in sorted(window.kept.items()))
        self._log(session_id, f"window {window.index} ({seconds:.3f} s): {kept or 'no records'}")
        if window.steps:
            mean_ms = window.step_total_ns / window.steps / 1e6
            self._log(session_id, f"  {window.steps} steps, mean {mean_ms:.3f} ms")
        for device_id, measured_ns, *spent in window.devices.tolist():
            shares = [f"{time_ns / max(1, measured_ns):.0%}" for time_ns in spent]
            text = "busy {}, exposed communication {}, idle {}".format(*shares)
            self._log(session_id, f"  device {device_id}: {text}")
        order = np.argsort(-window.operators["total_ns"].astype(np.int64), kind="stable")
        for row in window.operators[order[: self.options.get("top", 5)]]:
            domain, name = (printable(window.names[row[field]]) for field in ("domain", "name"))
            name = f"{domain}/{name}" if domain else name
            kind = ActivityKind(row["kind"]).name
            mean_us = int(row["total_ns"]) / max(1, int(row["count"])) / 1000
            self._log(
                session_id,
                f"  {kind} {name!r} device {row['device_id']}: {row['count']} times, "
                f"mean {mean_us:.3f} us, max {int(row['max_ns']) / 1000:.3f} us",
            )

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        lost = "unknown" if gap.records is None else sum(gap.records.values())
        self._log(session_id, f"records lost at stage {gap.stage}: {lost} {gap.reason}".rstrip())

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        self._log(session_id, f"closed: {end.reason}")

    def _log(self, session_id: str, text: str) -> None:
        """Write a line. Names and reasons come from the job, so they must not end the line."""
        _log.info("session %s %s", escaped(session_id), escaped(text))
