"""Parquet: a file per source and kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msmon.conversion.sources.source import Source
from msmon.conversion.targets.scratch import Scratch
from msmon.conversion.targets.target import Target, require_replaceable
from msmon.errors import SinkError, UsageError
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.records.markers import MarkerPairing


class ParquetTarget(Target):
    """Parquet files ``<source>.<Kind>.parquet`` in a directory; needs pyarrow.

    The columns are those of ``Batch.to_arrow()`` and ``MarkerEvents.to_arrow()``. The metadata of
    a file holds rank, pid and host. ``inputs`` are files that are never replaced.
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
        self._scratch = Scratch(directory)
        self._inputs = tuple(inputs)
        self._source: Source | None = None
        self._writers: dict[ActivityKind, Any] = {}
        self._made: list[Path] = []
        self._pairing = MarkerPairing()

    def begin(self, source: Source) -> None:
        """Begin a source. Each of its files is begun with the first record of its kind."""
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
        """Complete the source's files and put them in their place."""
        for kind, writer in self._writers.items():
            writer.close()
            path = self._directory / self._file_name(source, kind)
            (self._scratch.path / path.name).replace(path)
            self._made.append(path)
        self._writers.clear()

    def finish(self) -> list[Path]:
        self._scratch.remove()
        return self._made

    def discard(self) -> None:
        for writer in self._writers.values():
            with contextlib.suppress(OSError):  # what is buffered is not wanted any more
                writer.close()
        self._writers.clear()
        self._scratch.remove()

    def _writer(self, kind: ActivityKind, schema: Any) -> Any:
        if kind not in self._writers:
            assert self._source is not None
            process = self._source.process
            facts = {"rank": process.rank, "pid": process.pid, "host": process.host}
            metadata = {name: str(value) for name, value in facts.items()}
            name = self._file_name(self._source, kind)
            require_replaceable(self._directory / name, self._inputs)
            self._writers[kind] = self._parquet.ParquetWriter(
                self._scratch.path / name, schema.with_metadata(metadata)
            )
        return self._writers[kind]

    @staticmethod
    def _file_name(source: Source, kind: ActivityKind) -> str:
        return f"{source.stem}.{kind.name}.parquet"
