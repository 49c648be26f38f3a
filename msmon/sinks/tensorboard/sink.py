"""TensorBoard output: one run per host, rank and device, one point per window.

Tags as msMonitor's: the kind, and ``Marker/<domain>``; the value is the total
duration in ns within the window. Beyond them ``Communication/<communicator>``, and for
the operators that take most time: ``<Kind>.mean_ns/<name>``, ``<Kind>.p95_ns/<name>``,
``<Kind>.count/<name>``, ``<Kind>.total_ns/<name>`` (markers: ``<domain>/<name>``;
collectives: ``<communicator>/<operation> <size>``); all others are summed under
``other``. ``Device/busy``, ``Device/exposed`` and ``Device/idle`` are shares of a device's
time; ``Step/count``, ``Step/mean_ns``, ``Step/min_ns`` and ``Step/max_ns`` are in the host
run. Lost records: ``Dropped/<stage>`` and ``Gaps/<stage>`` in the host run, growing;
``Dropped/devices``: those of devices beyond the 64 of a process that have a run.
Values are 32-bit floats, as TensorBoard's scalars are (7 digits).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msmon.errors import SinkError, UsageError
from msmon.records.windows import Window
from msmon.sessions import Gap, SessionEnd, SessionInfo
from msmon.settings.options import Option, text_up_to, whole_number
from msmon.sinks.base import SessionOutput, Sink
from msmon.sinks.tensorboard.run_directories import RunDirectories
from msmon.sinks.tensorboard.runs import SessionRuns


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

    @classmethod
    def options_in_force(
        cls, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> dict[str, Any]:
        """Raises UsageError where no directory is given."""
        if not options.get("dir"):
            raise UsageError(
                "output tensorboard needs a directory", "write tensorboard:dir=DIRECTORY"
            )
        return dict(options)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._root = Path(options["dir"]).absolute()
        _check_writable(self._root)
        self._top = int(options.get("top", 10))
        self._directories = RunDirectories(self._root)
        self._sessions: dict[str, SessionRuns] = {}

    def open_session(self, session: SessionInfo) -> SessionOutput:
        """Claim the directory of the session's process. Raises OSError or SinkError."""
        known = self._sessions.get(session.session_id)
        if known is None:
            directory = self._directories.claim(session)
            known = SessionRuns(session, directory, self._top)
            self._sessions[session.session_id] = known
        return SessionOutput(files=(str(known.path),))

    def write_window(self, session_id: str, seq: int, window: Window) -> None:
        """Write the window's totals and operators; it is on disk when this returns."""
        self._sessions[session_id].write(window)

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        """Count the gap. It shows with the next window, as only events have a time and step."""
        self._sessions[session_id].count_gap(seq, gap)

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        """Let go of the directory."""
        runs = self._sessions.pop(session_id, None)
        if runs is not None:
            runs.close()

    def close(self) -> None:
        """Let go of all directories. A later sink continues the runs."""
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
