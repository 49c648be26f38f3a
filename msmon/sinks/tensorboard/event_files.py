"""Event files of one TensorBoard run: found, continued, appended to.

One event per window holds all scalars of the run. TensorBoard follows only the newest file of a
folder, so a new file gets a name that sorts last and that no other file has. TensorBoard stops at
a torn record, so what a failed write left is cut off again.
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
_LENGTH = struct.Struct("<Q")
_LENGTH_CRC_BYTES = 4
MAX_EVENT_BYTES = 64 << 20
"""Longest event that is read. One of ours has some thousand tags."""
_DATA_CRC_BYTES = 4


@dataclass
class RunHistory:
    """What the newest event file with data tells about a run.

    ``session_id`` is the session that wrote it, ``last_step`` and ``last_end_ns`` are those of its
    last event, ``tags`` all its tags. ``newest_second`` is in the name of the newest file of all.
    """

    session_id: str = ""
    last_step: int = -1
    last_end_ns: int = 0
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
                history.last_end_ns = round(event.wall_time * 1e9)
                history.tags.update(value.tag for value in event.summary.value)
        if history.tags:
            history.session_id = path.name.rpartition(".")[2]
            break
    return history


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
    """The one open event file of a run.

    The file is created with the first event, so that a run without data leaves nothing. It stays
    open. Where somebody has removed it, the next event begins a new one.
    """

    def __init__(self, run_directory: Path, session_id: str, newest_second: int) -> None:
        self._directory = run_directory
        self._session_id = re.sub(r"[^A-Za-z0-9_-]", "-", session_id)
        self._newest_second = newest_second
        self._file: io.FileIO | None = None
        self._size_bytes = 0

    def append(self, end_ns: int, step: int, scalars: Mapping[str, float]) -> None:
        """Write one event with all ``scalars`` (tag → value). Raises OSError and leaves nothing."""
        summary = Summary(
            value=[Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        )
        self._write(Event(wall_time=end_ns / 1e9, step=step, summary=summary))

    def close(self) -> None:
        """Close the file. A later event begins a new one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, event: Event) -> None:
        if self._file is not None and os.fstat(self._file.fileno()).st_nlink == 0:
            self.close()
        if self._file is None:
            self._file = self._create()
            self._size_bytes = 0
        if self._size_bytes == 0:
            self._put(Event(wall_time=event.wall_time, file_version="brain.Event:2"))
        self._put(event)

    def _create(self) -> io.FileIO:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._newest_second = max(int(time.time()), self._newest_second + 1)
        name = (
            f"events.out.tfevents.{self._newest_second:010d}."
            f"{socket.gethostname()}.{os.getpid()}.{self._session_id}"
        )
        return io.FileIO(self._directory / name, "x")

    def _put(self, event: Event) -> None:
        assert self._file is not None
        framed = io.BytesIO()
        RecordWriter(framed).write(event.SerializeToString())
        data = framed.getvalue()
        try:
            written = self._file.write(data)
            if written != len(data):
                raise OSError(
                    f"only {written} of {len(data)} bytes fitted into {self._file.name!r}"
                )
        except OSError:
            self._cut_back()
            raise
        self._size_bytes += len(data)

    def _cut_back(self) -> None:
        """Remove a partly written record, or give the file up when that fails too."""
        assert self._file is not None
        try:
            self._file.truncate(self._size_bytes)
            self._file.seek(self._size_bytes)
        except OSError:
            self.close()
