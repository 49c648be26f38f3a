"""Workbooks: an XLSX file per source, with a sheet per kind."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msmon.conversion.sources.source import Source
from msmon.conversion.targets.scratch import Scratch
from msmon.conversion.targets.target import Target, require_replaceable
from msmon.formats.workbook import WorkbookWriter
from msmon.records.batch import Batch, Column
from msmon.records.durations import are_spans
from msmon.records.kinds import ActivityKind
from msmon.records.markers import MarkerPairing


class WorkbookTarget(Target):
    """XLSX files.

    ``out`` is the file where there is a ``single`` source, else the directory for all files.
    ``inputs`` are files that are never replaced.
    """

    def __init__(self, out: Path, single: bool, inputs: Iterable[Path]) -> None:
        """Make the directory for several workbooks. Raises OSError."""
        super().__init__()
        self._out = out
        self._single = single
        self._inputs = tuple(inputs)
        self._made: list[Path] = []
        self._book: WorkbookWriter | None = None
        self._pairing = MarkerPairing()
        directory = out.parent if single else out
        if not single:
            directory.mkdir(parents=True, exist_ok=True)
        self._scratch = Scratch(directory)

    def begin(self, source: Source) -> None:
        """Begin the workbook of a source."""
        path = self._out if self._single else self._out / f"{source.stem}.xlsx"
        require_replaceable(path, self._inputs)
        self._book = WorkbookWriter(path, scratch=self._scratch.path)
        self._made.append(path)
        self._pairing = MarkerPairing()

    def write(self, batch: Batch) -> None:
        """Append rows."""
        assert self._book is not None
        if batch.kind is ActivityKind.Marker:
            markers = self._pairing.add(batch)
            self._count(markers.events)
            self._book.write_markers(markers)
        else:
            self._count(batch.records)
            self._book.write(batch)

    def end(self, source: Source) -> None:
        """Complete the workbook."""
        assert self._book is not None
        book, self._book = self._book, None
        book.close()

    def _count(self, records: Column) -> None:
        if "start_ns" in (records.dtype.names or ()):
            usable = are_spans(records["start_ns"], records["end_ns"])
            self.unmeasured += len(records) - int(usable.sum())

    def finish(self) -> list[Path]:
        self._scratch.remove()
        return self._made

    def discard(self) -> None:
        if self._book is not None:
            self._book.discard()
            self._book = None
        self._scratch.remove()
