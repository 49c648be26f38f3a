"""What the JSONL files of a session must know to go on after a crash of the daemon.

The session's progress says how many bytes of which files are committed. After a crash each file
is cut back to its committed length, so no line is torn or there twice. The session then goes on
in a new file. Only files that the progress names are ever cut or removed.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

from msmon.errors import SinkError
from msmon.records.markers import MarkerPairing
from msmon.sinks.base import Progress
from msmon.sinks.exports import FileIdentity, identity_of, open_file, remove_file

_log = logging.getLogger(__name__)


@dataclass
class Written:
    """Which file it is, and how many bytes of it are committed."""

    length: int
    device: int
    inode: int


@dataclass
class SeriesState:
    """The state of one series of files: those of the session, or those of a kind."""

    digits: str = ""
    """The 17 digits of time in the name of the last file."""
    open: dict[str, Written] = field(default_factory=dict)
    """Files written to since the last commit, by name."""
    removable: list[str] = field(default_factory=list)
    """Earlier files, oldest first; only when old files are deleted."""


@dataclass
class FilesState:
    """What must survive a crash of the daemon. The progress holds it as JSON."""

    directory: str
    seq: int = 0
    series: dict[str, SeriesState] = field(default_factory=dict)
    """By the label of the series."""
    devices: list[int] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    markers: list[str] = field(default_factory=list)
    """Frames of the markers that still wait for their other half, as version 0.1.0 kept them."""
    packed_markers: list[str] = field(default_factory=list)
    """The same, compressed: with 65,536 of them a sixth. It is written at each commit."""

    def keep_markers(self, pairing: MarkerPairing) -> None:
        """Take over what waits."""
        self.markers = []
        self.packed_markers = [
            base64.b64encode(zlib.compress(frame, 1)).decode() for frame in pairing.to_frames()
        ]

    def restore_markers(self, pairing: MarkerPairing) -> None:
        """Let a pairing go on with what waits. Raises ValueError, or zlib.error."""
        if self.packed_markers:
            pairing.restore(
                *(zlib.decompress(base64.b64decode(text)) for text in self.packed_markers)
            )
        elif self.markers:
            pairing.restore(*map(base64.b64decode, self.markers))

    @classmethod
    def from_json(cls, text: bytes) -> FilesState:
        """Read what :meth:`to_json` wrote, also that of version 0.1.0.

        Raises ValueError, TypeError or KeyError.
        """
        fields = json.loads(text)
        if "series" not in fields:  # there was one series, without a label
            names = ("digits", "open", "removable")
            fields["series"] = {"": {name: fields.pop(name) for name in names}}
        for label, item in fields["series"].items():
            opened = {name: Written(**written) for name, written in item["open"].items()}
            fields["series"][label] = SeriesState(**{**item, "open": opened})
        return cls(**fields)

    def to_json(self) -> bytes:
        """Return the text to keep."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


def resumed(directory: Path, session_id: str, progress: Progress) -> FilesState:
    """Return what the progress holds of a session, after cutting its files back to it.

    It is empty for a new session, and where an output of the daemon has moved. Raises SinkError
    or OSError.
    """
    if not progress.value:
        return FilesState(str(directory))
    try:
        state = FilesState.from_json(progress.value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SinkError(
            f"the progress of session {session_id} is damaged: {error}", "start a new session"
        ) from error
    if state.directory != str(directory):
        return FilesState(str(directory))
    for series in state.series.values():
        for name, written in series.open.items():
            _cut_back(directory / name, written)
        series.open = {name: item for name, item in series.open.items() if item.length}
    return state


def _cut_back(path: Path, written: Written) -> None:
    """Cut a file to its committed length; one without any is removed.

    What is no longer the file that was written is left alone: somebody put it there.
    """
    try:
        descriptor = open_file(path, os.O_WRONLY)
    except FileNotFoundError:
        return
    except SinkError as error:
        _log.warning("%s; the session goes on in a new file", error.message)
        return
    try:
        if identity_of(descriptor) != FileIdentity(written.device, written.inode):
            _log.warning("%s is another file now; the session goes on in a new one", path)
        elif written.length == 0:
            remove_file(path)
        elif os.fstat(descriptor).st_size > written.length:
            os.ftruncate(descriptor, written.length)
    finally:
        os.close(descriptor)
