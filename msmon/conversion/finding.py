"""From the paths a user names to the sources of a conversion: one per process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msmon.conversion.database_source import DatabaseSource
from msmon.conversion.jsonl_source import JsonlSource
from msmon.conversion.source import FILE_NAME, Source
from msmon.errors import SinkError, UsageError
from msmon.records.batch import Batch

_SQLITE_MAGIC = b"SQLite format 3\0"


class UnreadableSource(Source):
    """Files that can't be read at all: no record, one damaged part, and the reason."""

    def __init__(self, paths: Iterable[Path], reason: str) -> None:
        super().__init__(paths)
        self.skipped = 1
        self.problems = [reason]

    @property
    def size_bytes(self) -> int:
        return 0

    def batches(self, advance: Callable[[int], None]) -> Iterator[Batch]:
        return iter(())


def find_sources(paths: Iterable[Path]) -> list[Source]:
    """Return a source per process for files and directories of exported files.

    Rotated JSONL files of one process are one source; a file that can't be read is a source
    without records. Raises UsageError for a path that is missing, neither file nor
    directory, or a directory without exported files.
    """
    files = sorted(set(itertools.chain.from_iterable(map(_files_of, paths))), key=_in_order)
    rotated: dict[tuple[str, ...], list[Path]] = {}
    sources: list[Source] = []
    for path in files:
        if _is_database(path):
            sources.append(_source(DatabaseSource, path, [path]))
        else:
            rotated.setdefault(_process_of(path), []).append(path)
    sources.extend(_source(JsonlSource, group, group) for group in rotated.values())
    sources.sort(key=lambda source: (source.process.rank, source.stem))
    _tell_apart(sources)
    return sources


def _source(make: Callable[..., Source], argument: object, paths: Sequence[Path]) -> Source:
    try:
        if not any(path.stat().st_size for path in paths):
            return UnreadableSource(paths, "the file is empty")
        return make(argument)
    except OSError as error:
        return UnreadableSource(paths, f"can't be read: {error.strerror}")
    except SinkError as error:
        return UnreadableSource(paths, error.message)


def _tell_apart(sources: Sequence[Source]) -> None:
    """Let outputs that are named after their source have different names."""
    taken: set[str] = set()
    for source in sources:
        names = (f"{source.stem}-{number}" for number in itertools.count(2))
        source.stem = next(
            name for name in itertools.chain([source.stem], names) if name not in taken
        )
        taken.add(source.stem)


def _files_of(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path} is neither a file nor a directory")
    found = [item for item in path.iterdir() if FILE_NAME.match(item.name) and item.is_file()]
    if not found:
        raise UsageError(
            f"{path} holds no exported files",
            "their names are msmonitor_<pid>_<time>_<rank>.db or .jsonl; name the directory of "
            "--log-file",
        )
    return found


def _in_order(path: Path) -> tuple[str, str]:
    match = FILE_NAME.match(path.name)
    return (match[2] if match else "", str(path))


def _process_of(path: Path) -> tuple[str, ...]:
    match = FILE_NAME.match(path.name)
    return (str(path.parent), match[1], match[3]) if match else (str(path),)


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError:
        return path.suffix == ".db"
