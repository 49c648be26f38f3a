"""DB and JSONL files, written by the daemon's own sinks."""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from pathlib import Path

from msmon.conversion.sources.source import Source
from msmon.conversion.targets.scratch import Scratch
from msmon.conversion.targets.target import Target
from msmon.records.batch import Batch
from msmon.records.kinds import format_kinds
from msmon.sessions import DropStage, Gap, MonitorSettings, SessionEnd, SessionInfo
from msmon.settings.options import MONITOR_OPTION
from msmon.sinks.base import Sink
from msmon.sinks.jsonl.sink import JsonlSink
from msmon.sinks.sqlite.sink import SqliteSink

_RECORDS_PER_COMMIT = 500_000
_NO_LINK_ERRORS = (
    errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EMLINK, errno.EXDEV
)  # fmt: skip
"""What ``link`` says where the file system has no hard links, or no further one of a file."""

_LINES_PER_FILE = int(MONITOR_OPTION["jsonl_rotate_lines"].maximum or 0)


class SessionFilesTarget(Target):
    """One session of a sink per source, so that files are named and made as a daemon makes them.

    They are written in a scratch directory within the output directory, and get their place
    when all are complete.
    """

    def __init__(self, export_type: str, directory: Path) -> None:
        super().__init__()
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._scratch = Scratch(directory.resolve())  # the sinks refuse a path with links in it
        self._export_type = export_type
        self._sink: Sink = SqliteSink() if export_type == "DB" else JsonlSink()
        self._session_id = ""
        self._seq = 1
        self._uncommitted = 0

    def begin(self, source: Source) -> None:
        """Open the files of one more session."""
        self._session_id = uuid.uuid4().hex
        self._seq = 1
        settings = MonitorSettings(
            kinds=format_kinds(source.kinds),
            log_file=str(self._scratch.path),
            export_type=self._export_type,
            jsonl_rotate_lines=_LINES_PER_FILE,
        )
        start_ns = source.start_ns or time.time_ns()
        session = SessionInfo(self._session_id, source.process, settings, start_ns)
        self._sink.open_session(session)

    def write(self, batch: Batch) -> None:
        """Write a batch; committed now and then, so that no journal grows large."""
        self._sink.write_records(self._session_id, self._next_seq(), batch)
        self._uncommitted += len(batch)
        if self._uncommitted >= _RECORDS_PER_COMMIT:
            self._sink.commit()
            self._uncommitted = 0

    def end(self, source: Source) -> None:
        """Write notes and gaps, also one for what could not be read, and close the session."""
        for gap in (*source.gaps, *_unread(source)):
            self._sink.write_gap(self._session_id, self._next_seq(), gap)
        for key, value in source.notes.items():
            self._sink.write_note(self._session_id, self._next_seq(), key, value)
        end = SessionEnd(source.end_ns or time.time_ns(), "converted")
        self._sink.close_session(self._session_id, self._next_seq(), end)
        self._sink.commit()

    def finish(self) -> list[Path]:
        """Put the files in their place; a file of that name there is never replaced."""
        self._sink.close()
        made: list[Path] = []
        try:
            for path in sorted(self._scratch.path.glob("msmonitor_*")):
                place = self._directory / path.name
                _put_in_place(path, place)
                made.append(place)
        except OSError:
            for place in made:
                place.unlink()
            raise
        self._scratch.remove()
        return made

    def discard(self) -> None:
        """Remove the scratch directory."""
        with contextlib.suppress(OSError, ValueError):
            self._sink.close()
        self._scratch.remove()

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq


def _put_in_place(path: Path, place: Path) -> None:
    """Give a complete file its name, unless there is a file of that name: FileExistsError.

    A hard link does both at once. Where the file system has none (FAT, some FUSE mounts), an
    empty file takes the name first, and the complete one replaces it. So whoever reads sees an
    empty or a complete file. Raises OSError; nothing of ours has the name then.
    """
    try:
        os.link(path, place)
        return
    except OSError as error:
        if error.errno not in _NO_LINK_ERRORS:
            raise
    os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    try:
        path.replace(place)
    except BaseException:
        place.unlink()
        raise


def _unread(source: Source) -> list[Gap]:
    """Return a gap for what could not be read of the source, if anything."""
    if not source.skipped:
        return []
    reason = f"{source.skipped} parts of {source.paths[0].name} could not be read"
    return [Gap(DropStage.DECODE, source.start_ns, source.end_ns, None, reason)]
