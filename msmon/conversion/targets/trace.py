"""The Perfetto target: all sources in one trace."""

from __future__ import annotations

from pathlib import Path

from msmon.conversion.sources.source import Source
from msmon.conversion.targets.perfetto import PerfettoTrace
from msmon.conversion.targets.target import Target
from msmon.conversion.targets.trace_process import TraceProcess
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.records.markers import MarkerPairing


class TraceTarget(Target):
    """One trace file; every source is a process in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._trace = PerfettoTrace(path)
        self._process: TraceProcess | None = None
        self._pairing = MarkerPairing()

    def begin(self, source: Source) -> None:
        """Add a process."""
        self._process = self._trace.process(source.process)
        self._pairing = MarkerPairing()

    def write(self, batch: Batch) -> None:
        """Draw records."""
        assert self._process is not None
        if batch.kind is ActivityKind.Marker:
            self._process.write_markers(self._pairing.add(batch))
        else:
            self._process.write(batch)

    def end(self, source: Source) -> None:
        assert self._process is not None
        self._process.finish()
        self.left_out += self._process.no_place
        self.untimed += self._process.untimed

    def finish(self) -> list[Path]:
        self._trace.close()
        return [self._path]

    def discard(self) -> None:
        self._trace.discard()
