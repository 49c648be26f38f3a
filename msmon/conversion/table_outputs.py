"""Workbooks and Parquet files: one per source, a sheet or a file per kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msmon.conversion.output import Output
from msmon.conversion.source import Source
from msmon.errors import SinkError, UsageError
from msmon.formats.workbook import WorkbookWriter
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.records.markers import MarkerPairing


class WorkbookOutput(Output):
    """XLSX. ``target`` is the file for a single source, else the directory for all."""

    def __init__(self, target: Path, single: bool) -> None:
        super().__init__()
        self._target = target
        self._single = single
        self._made: list[Path] = []
        self._book: WorkbookWriter | None = None
        self._pairing = MarkerPairing()

    def begin(self, source: Source) -> None:
        """Begin the workbook of a source."""
        path = self._target if self._single else self._target / f"{source.stem}.xlsx"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._book = WorkbookWriter(path)
        self._made.append(path)
        self._pairing = MarkerPairing()

    def write(self, batch: Batch) -> None:
        """Append rows."""
        assert self._book is not None
        if batch.kind is ActivityKind.Marker:
            self._book.write_markers(self._pairing.add(batch))
        else:
            self._book.write(batch)

    def end(self, source: Source) -> None:
        """Complete the workbook."""
        assert self._book is not None
        book, self._book = self._book, None
        book.close()

    def finish(self) -> list[Path]:
        return self._made

    def discard(self) -> None:
        if self._book is not None:
            self._book.discard()
            self._book = None


class ParquetOutput(Output):
    """Parquet files ``<source>.<Kind>.parquet`` in a directory; needs pyarrow.

    Columns are those of ``Batch.to_arrow()`` and ``MarkerEvents.to_arrow()``. File metadata
    holds rank, pid and host.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise UsageError(
                "Parquet needs pyarrow, which is not installed", "pip install pyarrow"
            ) from None
        self._pyarrow = pyarrow
        self._parquet = pyarrow.parquet
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._source: Source | None = None
        self._writers: dict[ActivityKind, Any] = {}
        self._paths: dict[ActivityKind, Path] = {}
        self._made: list[Path] = []
        self._pairing = MarkerPairing()

    def begin(self, source: Source) -> None:
        """Begin the files of a source; each appears with its first record."""
        self._source = source
        self._pairing = MarkerPairing()

    def write(self, batch: Batch) -> None:
        """Append a row group."""
        paired = self._pairing.add(batch) if batch.kind is ActivityKind.Marker else batch
        if not len(paired):
            return
        table = paired.to_arrow()
        try:
            self._writer(batch.kind, table.schema).write_table(table)
        except self._pyarrow.ArrowException as error:
            raise SinkError(f"can't write {self._paths[batch.kind]}: {error}") from error

    def end(self, source: Source) -> None:
        """Complete the source's files."""
        for kind, writer in self._writers.items():
            writer.close()
            path = self._paths[kind]
            self._unfinished(path).replace(path)
            self._made.append(path)
        self._writers.clear()

    def finish(self) -> list[Path]:
        return self._made

    def discard(self) -> None:
        for kind, writer in self._writers.items():
            writer.close()
            self._unfinished(self._paths[kind]).unlink(missing_ok=True)
        self._writers.clear()

    def _writer(self, kind: ActivityKind, schema: Any) -> Any:
        if kind not in self._writers:
            assert self._source is not None
            process = self._source.process
            facts = {"rank": process.rank, "pid": process.pid, "host": process.host}
            metadata = {name: str(value) for name, value in facts.items()}
            path = self._directory / f"{self._source.stem}.{kind.name}.parquet"
            self._paths[kind] = path
            self._writers[kind] = self._parquet.ParquetWriter(
                self._unfinished(path), schema.with_metadata(metadata)
            )
        return self._writers[kind]

    @staticmethod
    def _unfinished(path: Path) -> Path:
        return path.with_name(f".{path.name}.unfinished")
