"""What every source has: whose records they are, and how much of them could be read."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.sessions import UNKNOWN_RANK, Gap, ProcessInfo

FILE_NAME = re.compile(
    r"msmonitor_([0-9]{1,9})_([0-9]{17})_(-?[0-9]{1,9})\.(?:(?:[A-Za-z]{1,30}\.)?jsonl|db)$"
)
"""Names of exported files: pid, time, rank. With files per kind the kind is before the ending."""

MAX_GAPS = 10_000
"""Gaps kept of one source; further ones count as skipped. A session has a handful."""

MAX_STEM_BYTES = 180
"""Longest stem; a name of a file has 255 bytes, and targets add a number, a kind and an ending."""


class Source(abc.ABC):
    """The records of one process, from one or several files.

    ``batches`` is read to its end once. ``skipped`` (how many parts could not be read),
    ``problems`` (sentences about them), ``notes`` and ``gaps`` are complete after that. Texts in
    ``problems`` may hold what a forged file says: escape them where people see them.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = tuple(paths)
        self.stem = _shortened(self.paths[0].stem)
        """Name for the files that are made from this source, without directory and ending."""
        self.process = _process_from_name(self.paths[0].name)
        self.kinds: frozenset[ActivityKind] = frozenset()
        """Kinds known to occur before the first batch; others may follow."""
        self.start_ns = 0
        """Wall clock at which the session began; 0: unknown. Set before the first batch."""
        self.end_ns = 0
        """Wall clock at which it ended; 0: unknown. Set after the last batch."""
        self.skipped = 0
        self.problems: list[str] = []
        self.notes: dict[str, str] = {}
        self.gaps: list[Gap] = []

    @property
    def size_bytes(self) -> int:
        """Size of all files. Raises OSError."""
        return sum(path.stat().st_size for path in self.paths)

    @abc.abstractmethod
    def batches(self, advance: Callable[[int], None]) -> Iterator[Batch]:
        """Yield the records; ``advance`` is told how many more bytes have been read.

        Raises OSError when a file fails; damage in a file is skipped and counted instead.
        """

    def keep_gap(self, gap: Gap) -> None:
        """Remember a gap that the file tells of."""
        if len(self.gaps) < MAX_GAPS:
            self.gaps.append(gap)
        else:
            self.skipped += 1


def _process_from_name(name: str) -> ProcessInfo:
    match = FILE_NAME.match(name)
    if match is None:
        return ProcessInfo(host="", pid=0, start_time=0, rank=UNKNOWN_RANK)
    rank = max(UNKNOWN_RANK, int(match[3]))
    return ProcessInfo(host="", pid=int(match[1]), start_time=0, rank=rank)


def _shortened(stem: str) -> str:
    """Return the stem as text of bounded length; bytes that are no UTF-8 become "?"."""
    encoded = stem.encode("utf-8", "replace")[:MAX_STEM_BYTES]
    return encoded.decode("utf-8", "ignore")
