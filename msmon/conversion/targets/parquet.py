"""Parquet: a file per source and kind."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msmon.conversion.sources.source import Source
from msmon.conversion.targets.target import Target, require_replaceable
from msmon.errors import SinkError, UsageError
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.records.markers import MarkerPairing


class ParquetTarget(Target):
    """Parquet files ``<source>.<Kind>.parquet`` in a directory; needs pyarrow.

    Columns are those of ``Batch.to_arrow()`` and ``MarkerEvents.to_arrow()``. File metadata
    holds rank, pid and host. ``inputs``: files that are never replaced.
    """

    def __init__(self, directory: Path, inputs: Iterable[Path]) -> None:
        """Make the directory. Raises UsageError without pyarrow, OSError."""
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
        self._inputs = tuple(inputs)
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
        try:
            table = paired.to_arrow()
            self._writer(batch.kind, table.schema).write_table(table)
        except self._pyarrow.ArrowException as error:
            assert self._source is not None
            raise SinkError(f"can't write {self._source.stem} as Parquet: {error}") from error

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
            require_replaceable(path, self._inputs)
            self._paths[kind] = path
            self._writers[kind] = self._parquet.ParquetWriter(
                self._unfinished(path), schema.with_metadata(metadata)
            )
        return self._writers[kind]

    @staticmethod
    def _unfinished(path: Path) -> Path:
        return path.with_name(f".{path.name}.unfinished")
