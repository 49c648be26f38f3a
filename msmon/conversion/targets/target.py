"""What every target of a conversion does, and how it treats the files it writes."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from pathlib import Path

from msmon.conversion.sources.source import Source
from msmon.errors import UsageError
from msmon.records.batch import Batch


class Target(abc.ABC):
    """Takes the records of one source after the other.

    The calls are ``begin``, any number of ``write``, ``end`` for each source, and ``finish``
    once; after an error ``discard`` in its place. Methods raise SinkError, UsageError or OSError.
    """

    def __init__(self) -> None:
        self.left_out = 0
        """Records that the format has no place for."""
        self.untimed = 0
        """Records left out because their times are none (:mod:`msmon.records.durations`)."""
        self.unmeasured = 0
        """Records written, but for that reason without a duration."""

    @abc.abstractmethod
    def begin(self, source: Source) -> None:
        """Begin with the records of a source."""

    @abc.abstractmethod
    def write(self, batch: Batch) -> None:
        """Write records of the current source."""

    @abc.abstractmethod
    def end(self, source: Source) -> None:
        """End the current source, whose notes and gaps are known now."""

    @abc.abstractmethod
    def finish(self) -> list[Path]:
        """Complete everything; return the files made."""

    @abc.abstractmethod
    def discard(self) -> None:
        """Remove what is unfinished."""


def require_replaceable(path: Path, inputs: Iterable[Path]) -> Path:
    """Return the path of a file that may be written, or written anew.

    Raises UsageError for an input of this conversion, a device, a directory, and where there is
    no directory for it: most often its name has a typing error.
    """
    if not path.parent.is_dir():
        raise UsageError(f"--out: there is no directory {path.parent}", "make it first")
    if path.exists() and not path.is_file():
        raise UsageError(f"--out: {path} is no regular file", "name another file")
    if path.resolve() in {item.resolve() for item in inputs}:
        raise UsageError(f"--out: {path} is an input of this conversion", "name another file")
    return path
