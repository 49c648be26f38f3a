"""Records as SQLite files that msprof-analyze reads: one file per process and session."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msmon.errors import SinkError
from msmon.records.batch import Batch
from msmon.sessions import UNKNOWN_RANK, Gap, SessionEnd, SessionInfo
from msmon.sinks.base import CommitFailed, Progress, SessionOutput
from msmon.sinks.export_sink import ExportSink
from msmon.sinks.sqlite.copies import warn_of_copies
from msmon.sinks.sqlite.file_state import FileState
from msmon.sinks.sqlite.matching import Matching
from msmon.sinks.sqlite.session_file import SessionDatabase

MAX_LOOKED_AT = 1000
"""Directories in which copies without a log are looked for."""


@dataclass(frozen=True)
class _Launch:
    """What sessions have in common whose processes are the ranks of one launch of one job."""

    directory: Path
    host: str
    """Empty where the job has an id: the launch may then span hosts."""
    job_id: str
    launch: str

    @classmethod
    def of(cls, database: SessionDatabase) -> _Launch | None:
        """Return the launch of a session; None where nothing tells which other ranks belong to it.

        Two jobs without any id may well write into one directory.
        """
        process = database.session.process
        if process.rank == UNKNOWN_RANK or not (process.job_id or process.launch):
            return None
        host = "" if process.job_id else process.host
        return cls(database.path.parent, host, process.job_id, process.launch)


class SqliteSink(ExportSink):
    """Writes each session into its export directory, or into ``path``.

    The thread of the sink writes all state. A session is in ``_open`` until its end, then in
    ``_ended`` until the next commit; the newest file of a launch's rank is in ``_complete``
    until the last rank of the launch has ended.
    """

    NAME = "sqlite"
    HELP = "Records as SQLite files, for sessions started with --export-type DB."

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._open: dict[str, SessionDatabase] = {}
        self._ended: dict[str, SessionDatabase] = {}
        self._complete: dict[_Launch, dict[int, Path]] = {}
        """Launch → rank → its newest file. Who compares ranks reads the newest only."""
        self._matching = Matching()
        self._looked_at: set[Path] = set()
        """Directories in which copies without a log were looked for."""
        if self.options.get("path"):
            self._look_for_copies(Path(os.path.realpath(self.options["path"])))

    def open_session(self, session: SessionInfo, progress: Progress | None = None) -> SessionOutput:
        for group in (self._open, self._ended):
            interrupted = group.pop(session.session_id, None)
            if interrupted is not None:
                interrupted.close()
        placed = self.placed(session)
        if placed is None:
            return SessionOutput()
        self._look_for_copies(Path(placed.settings.log_file))
        progress = progress or Progress()
        kept = FileState.of(progress)
        if kept is not None:
            self._matching.wait_for(kept.path)
        database = SessionDatabase(placed, progress)
        self._open[session.session_id] = database
        return SessionOutput((str(database.path),), database.written_seq)

    def write_records(self, session_id: str, seq: int, batch: Batch) -> None:
        if session_id in self._open:
            self._open[session_id].write_records(seq, batch)

    def pass_over(self, session_id: str, seq: int) -> None:
        if session_id in self._open:
            self._open[session_id].pass_over(seq)

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        if session_id in self._open:
            self._open[session_id].write_gap(seq, gap)

    def write_note(self, session_id: str, seq: int, key: str, value: str) -> None:
        if session_id in self._open:
            self._open[session_id].write_meta(seq, key, value)

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        if session_id in self._open:
            self._open[session_id].end(seq, end)
            self._ended[session_id] = self._open.pop(session_id)

    def commit(self) -> None:
        failed: dict[str, str] = {}
        for group in (self._open, self._ended):
            for session_id, database in group.items():
                try:
                    database.commit()
                except SinkError as error:
                    failed[session_id] = error.message
        for session_id in set(self._ended) - set(failed):
            self._complete_file(self._ended.pop(session_id))
        self._matching.wait_a_moment()
        if failed:
            raise CommitFailed(failed)

    def _complete_file(self, database: SessionDatabase) -> None:
        """Close a file; when it is the launch's last, match the collectives of its ranks."""
        database.close()
        launch = _Launch.of(database)
        if launch is None:
            return
        paths = self._complete.setdefault(launch, {})
        paths[database.session.process.rank] = database.path
        others = (*self._open.values(), *self._ended.values())
        if any(_Launch.of(other) == launch for other in others):
            return
        del self._complete[launch]
        self._matching.begin(list(paths.values()))

    def _look_for_copies(self, directory: Path) -> None:
        """Name the files there that were copied without their log, once."""
        if directory in self._looked_at or len(self._looked_at) >= MAX_LOOKED_AT:
            return
        self._looked_at.add(directory)
        ours = {database.path for database in (*self._open.values(), *self._ended.values())}
        with contextlib.suppress(OSError):
            warn_of_copies(directory, ours)

    def close(self) -> None:
        for database in (*self._open.values(), *self._ended.values()):
            database.close()
        self._matching.close()
