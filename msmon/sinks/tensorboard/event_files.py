"""Event files of one TensorBoard run: found, continued, appended to.

One event per window holds all scalars of the run. TensorBoard follows only the newest file of a
folder, so a new file gets a name that sorts last and that no other file has. TensorBoard stops at
a torn record, so what a failed write left is cut off again.

Each event names its window by number, in a field that TensorBoard does not show. Its wall time
could not tell which windows are written: it is a float, and clocks are set back.
"""

from __future__ import annotations

import io
import os
import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from msmon.sinks.regular_files import open_regular

_NAME = re.compile(r"events\.out\.tfevents\.(\d{10})\.")
_WINDOW = re.compile(r"msmon window (\d{1,19})")
_LENGTH = struct.Struct("<Q")
_LENGTH_CRC_BYTES = 4
MAX_EVENT_BYTES = 64 << 20
"""Longest event that is read. One of ours has some thousand tags."""
_DATA_CRC_BYTES = 4


@dataclass
class RunHistory:
    """What the newest event file with data tells about a run.

    ``session`` is the word in its name that stands for the session that wrote it, ``last_step``,
    ``last_window`` and ``last_end_s`` (its end) are those of its last event (-1: unknown), ``tags``
    all its tags.
    ``newest_second`` is in the name of the newest file of all.
    """

    session: str = ""
    last_step: int = -1
    last_window: int = -1
    last_end_s: float = -1.0
    tags: set[str] = field(default_factory=set)
    newest_second: int = 0


def read_history(run_directory: Path) -> RunHistory:
    """Read the newest event file that has data. A torn record ends the reading, as TensorBoard's.

    Raises OSError, also for a link, a pipe or a device with the name of an event file.
    """
    history = RunHistory()
    for path in _event_files(run_directory):
        history.newest_second = max(history.newest_second, _second_of(path))
        for event in _events(path):
            if event.HasField("summary"):
                history.last_step = event.step
                history.last_window = _window_of(event)
                history.last_end_s = event.wall_time
                history.tags.update(value.tag for value in event.summary.value)
        if history.tags:
            history.session = path.name.rpartition(".")[2]
            break
    return history


def session_word(session_id: str) -> str:
    """Return what stands for a session in the name of its event files."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", session_id)


def _window_of(event: Event) -> int:
    """Return the number of the window that an event was written for; -1: it names none."""
    match = _WINDOW.fullmatch(event.source_metadata.writer)
    return int(match.group(1)) if match else -1


def _event_files(run_directory: Path) -> list[Path]:
    """Return the event files, newest first."""
    found = [path for path in run_directory.glob("events.out.tfevents.*") if _NAME.match(path.name)]
    return sorted(found, key=lambda path: path.name, reverse=True)


def _second_of(path: Path) -> int:
    match = _NAME.match(path.name)
    return int(match.group(1)) if match else 0


def _events(path: Path) -> Iterator[Event]:
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        while True:
            head = file.read(_LENGTH.size + _LENGTH_CRC_BYTES)
            if len(head) < _LENGTH.size + _LENGTH_CRC_BYTES:
                return
            (length,) = _LENGTH.unpack_from(head)
            if length > min(MAX_EVENT_BYTES, os.fstat(file.fileno()).st_size):
                return
            data = file.read(length)
            if len(data) < length or len(file.read(_DATA_CRC_BYTES)) < _DATA_CRC_BYTES:
                return
            try:
                yield Event.FromString(data)
            except DecodeError:
                return


class EventFile:
    """The event file that a run is continued in.

    The file is created with the first event, so that a run without data leaves nothing. It is open
    only while an event is written: a daemon has many runs, and each open file is a descriptor less
    for its connections. Where somebody has removed or replaced it, the next event begins a new one.
    """

    def __init__(self, run_directory: Path, session_id: str, newest_second: int) -> None:
        self._directory = run_directory
        self._session = session_word(session_id)
        self._newest_second = newest_second
        self._path: Path | None = None
        self._identity = (0, 0)
        """Device and inode of the file at ``_path``, as it was created."""
        self._size_bytes = 0

    def append(self, window: int, end_ns: int, step: int, scalars: Mapping[str, float]) -> None:
        """Write the event of a window, given by number, with all ``scalars`` (tag → value).

        Raises OSError and leaves nothing.
        """
        summary = Summary(
            value=[Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        )
        event = Event(wall_time=end_ns / 1e9, step=step, summary=summary)
        event.source_metadata.writer = f"msmon window {window}"
        file = self._open()
        try:
            if self._size_bytes == 0:
                self._put(file, Event(wall_time=event.wall_time, file_version="brain.Event:2"))
            self._put(file, event)
        finally:
            file.close()

    def _open(self) -> io.FileIO:
        file = self._reopen() or self._create()
        file.seek(self._size_bytes)
        return file

    def _reopen(self) -> io.FileIO | None:
        """Return the file that was written last, None: it is not there any more."""
        if self._path is None:
            return None
        try:
            file = io.FileIO(open_regular(self._path, os.O_WRONLY), "w")
        except FileNotFoundError:
            return None
        if _identity(file) == self._identity:
            return file
        file.close()
        return None

    def _create(self) -> io.FileIO:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._newest_second = max(int(time.time()), self._newest_second + 1)
        name = (
            f"events.out.tfevents.{self._newest_second:010d}."
            f"{socket.gethostname()}.{os.getpid()}.{self._session}"
        )
        file = io.FileIO(self._directory / name, "x")
        self._path = self._directory / name
        self._identity = _identity(file)
        self._size_bytes = 0
        return file

    def _put(self, file: io.FileIO, event: Event) -> None:
        framed = io.BytesIO()
        RecordWriter(framed).write(event.SerializeToString())
        data = framed.getvalue()
        try:
            written = file.write(data)
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes fitted into {file.name!r}")
        except OSError:
            self._cut_back(file)
            raise
        self._size_bytes += len(data)

    def _cut_back(self, file: io.FileIO) -> None:
        """Remove a partly written record, or give the file up when that fails too."""
        try:
            file.truncate(self._size_bytes)
        except OSError:
            self._path = None


def _identity(file: io.FileIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino
