"""What every source of a conversion has: whose records they are, and how much could be read."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.sessions import UNKNOWN_RANK, Gap, ProcessInfo

FILE_NAME = re.compile(r"msmonitor_(\d+)_(\d{17})_(-?\d+)\.(?:jsonl|db)$")
"""Names of exported files: pid, time, rank."""


class Source(abc.ABC):
    """The records of one process, from one or several files.

    ``batches`` is to be read to its end once; ``skipped`` (parts that could not be
    read), ``problems``, ``notes`` and ``gaps`` are complete after it.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = tuple(paths)
        self.stem = self.paths[0].stem
        """Name for output files made from this source."""
        self.process = _process_from_name(self.paths[0].name)
        self.kinds: frozenset[ActivityKind] = frozenset()
        self.start_ns = 0
        self.end_ns = 0
        self.skipped = 0
        self.problems: list[str] = []
        self.notes: dict[str, str] = {}
        self.gaps: list[Gap] = []

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(path.stat().st_size for path in self.paths)

    @abc.abstractmethod
    def batches(self, advance: Callable[[int], None]) -> Iterator[Batch]:
        """Yield the records; ``advance`` is told how many more bytes have been read."""


def _process_from_name(name: str) -> ProcessInfo:
    match = FILE_NAME.match(name)
    if match is None:
        return ProcessInfo(host="", pid=0, start_time=0, rank=UNKNOWN_RANK)
    return ProcessInfo(host="", pid=int(match[1]), start_time=0, rank=int(match[3]))
