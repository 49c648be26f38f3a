"""Records as JSON lines with msMonitor's keys, rotated by lines and files.

Lines of different kinds have different keys. Tools that make one table of a file guess its
columns from the first lines and fill what is missing, so they leave out columns or turn times
into floats. For them there is a second sink, which gives each kind of line its own files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from msmon.errors import SinkError
from msmon.records.batch import Batch
from msmon.records.kinds import INVALID_ID, ActivityKind
from msmon.records.markers import MarkerPairing
from msmon.sessions import LOST_END, Gap, SessionEnd, SessionInfo
from msmon.sinks.base import CommitFailed, Progress, SessionOutput
from msmon.sinks.export_sink import ExportSink
from msmon.sinks.jsonl.files import Limits, SessionFiles, line
from msmon.sinks.jsonl.limits import DEFAULT_FILES, DEFAULT_LINES, limits_in_force, usable_files
from msmon.sinks.jsonl.lines import LineBlock, marker_lines, record_lines

LINES_PER_WRITE = 1 << 14
GROUP_INFO_KEY = "parallel_group_info"
SESSION_LABEL = "session"
"""Label of the lines that are no records: gaps, groups and devices."""


class _SessionLines:
    """The lines of one session. The thread of the sink writes it.

    Methods raise SinkError or OSError; the object must then be made anew.
    """

    def __init__(
        self, session: SessionInfo, limits: Limits, progress: Progress, per_kind: bool
    ) -> None:
        self._session = session
        self.files = SessionFiles(session, limits, progress, per_kind)
        state = self.files.state
        self.seq = state.seq
        self.ended = False
        self.told: tuple[str, ...] = self.files.first_told
        """The files that the daemon knows of."""
        self._pairing = MarkerPairing()
        self._devices = set(state.devices)
        state.restore_markers(self._pairing)

    def write_records(self, seq: int, batch: Batch) -> None:
        if batch.kind == ActivityKind.Marker:
            blocks = list(marker_lines(self._pairing.add(batch)))
        else:
            blocks = [record_lines(batch)]
        for block in blocks:
            self._write(block)
        self.seq = seq

    def write_line(self, seq: int, fields: dict[str, Any]) -> None:
        """Write a line that is not a record."""
        if self.files.room(SESSION_LABEL):
            self.files.write(SESSION_LABEL, line(fields), 1)
        self.seq = seq

    def note(self, seq: int, key: str, value: str) -> None:
        """Remember a fact; it is written at the end of the file."""
        self.files.state.notes[key] = value
        self.seq = seq

    def end(self, seq: int, end: SessionEnd) -> None:
        """Write the closing lines: the group info, and rank, devices and session as the very last.

        The process of a lost session only fell silent and may come back, so open markers are kept.
        """
        self.ended = True
        if end.reason != LOST_END:
            self._pairing = MarkerPairing()
        if self.files.state.ended and self.seq == self.files.state.seq:
            return  # told once more after a restart of the daemon
        notes = self.files.state.notes
        if GROUP_INFO_KEY in notes:
            self.write_line(seq, {"kind": GROUP_INFO_KEY, "value": notes[GROUP_INFO_KEY]})
        if self._devices:
            process = self._session.process
            closing = {
                "kind": "rank_device_map",
                "rank": process.rank,
                "device": sorted(self._devices),
                "session": self._session.session_id,
                "host": process.host,
                "startNs": self._session.start_ns,
                "endNs": end.end_ns,
            }
            self.write_line(seq, closing)
        self.seq = seq

    def commit(self) -> None:
        """Store in the progress what was written, and what is needed to go on after it."""
        state = self.files.state
        if not self.files.changed and (self.seq, self.ended) == (state.seq, state.ended):
            return
        state.devices = sorted(self._devices)
        state.keep_markers(self._pairing)
        self.files.commit(self.seq, self.ended)

    def _write(self, block: LineBlock) -> None:
        """Write a block in as few system calls as rotation and memory allow."""
        label = block.shape.label
        begin = 0
        while begin < block.count:
            end = min(block.count, begin + self.files.room(label), begin + LINES_PER_WRITE)
            self.files.write(label, block.encode(begin, end), end - begin)
            begin = end
        records = block.block.records
        if "device_id" in (records.dtype.names or ()):
            seen = np.unique(records["device_id"]).tolist()
            self._devices.update(device for device in seen if 0 <= device < INVALID_ID)


class JsonlSink(ExportSink):
    """Writes each session into its export directory, or into ``path``.

    The thread of the sink writes all state.
    """

    NAME = "jsonl"
    HELP = "Records as JSON lines, for sessions started with --export-type Jsonl."
    PER_KIND: ClassVar[bool] = False
    """Whether each kind of line has files of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._sessions: dict[str, _SessionLines] = {}

    @classmethod
    def options_in_force(
        cls, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> dict[str, Any]:
        return {**limits_in_force(environ), **super().options_in_force(options, environ)}

    def open_session(self, session: SessionInfo, progress: Progress | None = None) -> SessionOutput:
        interrupted = self._sessions.pop(session.session_id, None)
        if interrupted is not None:
            interrupted.files.close()
        placed = self.placed(session)
        if placed is None:
            return SessionOutput()
        limits = self._limits(session)
        opened = _SessionLines(placed, limits, progress or Progress(), self.PER_KIND)
        self._sessions[session.session_id] = opened
        return SessionOutput(opened.told, opened.seq)

    def write_records(self, session_id: str, seq: int, batch: Batch) -> None:
        if session_id in self._sessions:
            self._sessions[session_id].write_records(seq, batch)

    def pass_over(self, session_id: str, seq: int) -> None:
        if session_id in self._sessions:
            self._sessions[session_id].seq = seq

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        if session_id in self._sessions:
            fields = {
                "kind": "gap",
                "startNs": gap.start_ns,
                "endNs": gap.end_ns,
                "stage": gap.stage,
                "records": gap.records,
                "reason": gap.reason,
            }
            self._sessions[session_id].write_line(seq, fields)

    def write_note(self, session_id: str, seq: int, key: str, value: str) -> None:
        if session_id in self._sessions:
            self._sessions[session_id].note(seq, key, value)

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        if session_id in self._sessions:
            self._sessions[session_id].end(seq, end)

    def commit(self) -> dict[str, tuple[str, ...]]:
        failed: dict[str, str] = {}
        changed: dict[str, tuple[str, ...]] = {}
        for session_id, lines in list(self._sessions.items()):
            try:
                lines.commit()
            except (SinkError, OSError) as error:
                failed[session_id] = str(error)
            else:
                if lines.files.written != lines.told:
                    changed[session_id] = lines.files.written
                    lines.told = lines.files.written
                if lines.ended:
                    del self._sessions[session_id]
        if failed:
            raise CommitFailed(failed, changed)
        return changed

    def close(self) -> None:
        for lines in self._sessions.values():
            lines.files.close()

    def _limits(self, session: SessionInfo) -> Limits:
        """Lines per file and files kept: what the command says wins over the environment."""
        settings = session.settings
        lines, files = settings.jsonl_rotate_lines, usable_files(settings.jsonl_rotate_files)
        if lines == DEFAULT_LINES:
            lines = self.options.get("lines", DEFAULT_LINES)
        if files == DEFAULT_FILES:
            files = self.options.get("files", DEFAULT_FILES)
        return Limits(lines, files)


class JsonlPerKindSink(JsonlSink):
    """Writes the lines of each kind into files of their own."""

    NAME = "jsonl-per-kind"
    HELP = "JSON lines, files per kind, for sessions started with --export-type JsonlPerKind."
    PER_KIND = True
