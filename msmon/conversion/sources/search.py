"""From the paths a user names to the sources of a conversion: one per process."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from msmon.conversion.sources.closing_lines import by_session
from msmon.conversion.sources.database import DatabaseSource
from msmon.conversion.sources.json_lines import JsonlSource
from msmon.conversion.sources.source import FILE_NAME, Source
from msmon.errors import SinkError, UsageError
from msmon.records.batch import Batch
from msmon.sinks.regular_files import open_regular

_SQLITE_MAGIC = b"SQLite format 3\0"


class UnreadableSource(Source):
    """Files that can't be read at all: no record, one damaged part, and the reason."""

    def __init__(self, paths: Iterable[Path], reason: str) -> None:
        super().__init__(paths)
        self.skipped = 1
        self.problems = [reason]

    @property
    def size_bytes(self) -> int:
        """Nothing of it is read."""
        return 0

    def batches(self, advance: Callable[[int], None]) -> Iterator[Batch]:
        return iter(())


def find_sources(paths: Iterable[Path]) -> list[Source]:
    """Return a source per session for files and directories of exported files.

    Rotated JSONL files of one session are one source. A file that can't be read is a source
    without records, and so is what only has the name of an exported file in a directory: a link,
    a pipe or a device. Raises UsageError for a path that is missing, neither file nor
    directory, or a directory without exported files.
    """
    rotated: dict[tuple[str, ...], list[Path]] = {}
    sources: list[Source] = []
    for path, reason in sorted(_all_files(paths).items(), key=lambda item: _in_order(item[0])):
        if reason:
            sources.append(UnreadableSource([path], reason))
        elif _is_database(path):
            sources.append(_source(partial(DatabaseSource, path), [path]))
        else:
            rotated.setdefault(_process_of(path), []).append(path)
    for group in rotated.values():
        sources += _sessions_of(group)
    sources.sort(key=lambda source: (source.process.rank, source.stem))
    _tell_apart(sources)
    return sources


def _sessions_of(group: Sequence[Path]) -> list[Source]:
    """Return a source per session for the JSONL files of one directory, pid and rank."""
    try:
        sessions = by_session(group)
    except OSError as error:
        return [UnreadableSource(group, f"can't be read: {error.strerror}")]
    return [
        _source(partial(JsonlSource, item.paths, item.closing), item.paths) for item in sessions
    ]


def _source(make: Callable[[], Source], paths: Sequence[Path]) -> Source:
    try:
        if not any(path.stat().st_size for path in paths):
            return UnreadableSource(paths, "the file is empty")
        return make()
    except OSError as error:
        return UnreadableSource(paths, f"can't be read: {error.strerror}")
    except SinkError as error:
        return UnreadableSource(paths, error.message)


def _tell_apart(sources: Sequence[Source]) -> None:
    """Give every source a stem of its own: targets name files after it."""
    taken: set[str] = set()
    for source in sources:
        names = (f"{source.stem}-{number}" for number in itertools.count(2))
        source.stem = next(
            name for name in itertools.chain([source.stem], names) if name not in taken
        )
        taken.add(source.stem)


def _all_files(paths: Iterable[Path]) -> dict[Path, str]:
    """Return path → why it can't be read, or "". Raises UsageError."""
    files: dict[Path, str] = {}
    for path in paths:
        try:
            files.update(_files_of(path))
        except OSError as error:
            raise UsageError(f"{path} can't be read: {error.strerror}") from error
    return files


def _files_of(path: Path) -> dict[Path, str]:
    if not path.exists():
        raise UsageError(f"{path} does not exist", "name exported files, or their directory")
    if path.is_file():
        return {path: ""}
    if not path.is_dir():
        raise UsageError(f"{path} is neither a file nor a directory")
    found = [item for item in path.iterdir() if FILE_NAME.match(item.name)]
    if not found:
        raise UsageError(
            f"{path} holds no exported files",
            "their names are msmonitor_<pid>_<time>_<rank>.db or .jsonl; name the directory of "
            "--log-file",
        )
    return {item: _unusable(item) for item in found}


def _unusable(path: Path) -> str:
    """Return why a file found in a directory is not read; empty when it is."""
    if path.is_symlink():
        return "is a link; name it itself to read what it leads to"
    return "" if path.is_file() else "is no regular file"


def _in_order(path: Path) -> tuple[bool, str, str]:
    """Return what files are sorted by: their time, but files of markers alone go first.

    Collectives are numbered within steps, and the steps are markers.
    """
    match = FILE_NAME.match(path.name)
    return ("Marker.jsonl" not in path.name, match[2] if match else "", str(path))


def _process_of(path: Path) -> tuple[str, ...]:
    match = FILE_NAME.match(path.name)
    return (str(path.parent), match[1], match[3]) if match else (str(path),)


def _is_database(path: Path) -> bool:
    try:
        with open(open_regular(path, os.O_RDONLY, follow=True), "rb") as file:
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError:
        return path.suffix == ".db"
