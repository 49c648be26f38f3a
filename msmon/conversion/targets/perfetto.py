"""Traces for Perfetto and chrome://tracing, in the trace-event JSON format.

Complete events ("X") for calls, kernels and copies, ranges on tracks of their own,
instants ("i") for marks, and flow arrows ("s" to "f") from the call that launched a
kernel to the kernel, by correlation id. Times are µs with three decimals, counted from
a base shortly before the first records: a double holds them exactly, unlike wall-clock times.
``otherData.base_ns`` is what to add.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from msmon.conversion.targets.scratch import Scratch
from msmon.conversion.targets.trace_process import TraceClock, TraceProcess
from msmon.conversion.targets.tracks import ProcessTracks, Track, numbering
from msmon.sessions import ProcessInfo


class PerfettoTrace:
    """Writes one trace of any number of processes. :meth:`close` puts it in its place."""

    def __init__(self, path: Path) -> None:
        """Begin a trace, out of sight until it is complete. Raises OSError."""
        self._path = path
        self._scratch = Scratch(path.parent)
        self._unfinished = self._scratch.path / "trace.json"
        self._file = self._unfinished.open("w", encoding="ascii", buffering=1 << 20)
        self._clock = TraceClock()
        self._numbers = numbering()
        self._processes = 0
        self._current: TraceProcess | None = None
        self._comma = ""
        self._file.write('{"displayTimeUnit":"ns","traceEvents":[')

    def process(self, process: ProcessInfo) -> TraceProcess:
        """Add a process. The one before is finished with that."""
        self._finish_current()
        self._processes += 1
        tracks = ProcessTracks(process, self._processes, self._numbers, self._name_track)
        self._current = TraceProcess(self._emit, self._clock, tracks, self._processes)
        return self._current

    def close(self) -> None:
        """Complete the file. Raises OSError."""
        self._finish_current()
        self._file.write(f'\n],"otherData":{{"base_ns":"{self._clock.base_ns or 0}"}}}}\n')
        self._file.close()
        self._unfinished.chmod(0o640)
        self._unfinished.replace(self._path)
        self._scratch.remove()

    def discard(self) -> None:
        """Remove everything written so far."""
        with contextlib.suppress(OSError):  # what could not be written is not wanted any more
            self._file.close()
        self._scratch.remove()

    def _finish_current(self) -> None:
        if self._current is not None:
            self._current.finish()
            self._current = None

    def _emit(self, event: str) -> None:
        """Write one event, given as a JSON object."""
        self._file.write(f"{self._comma}\n{event}")
        self._comma = ","

    def _name_track(self, what: str, track: Track, name: str, order: int) -> None:
        place = f'"ph":"M","pid":{track.pid},"tid":{track.tid},'
        self._emit(f'{{{place}"name":"{what}","args":{{"name":{json.dumps(name)}}}}}')
        sort = what.replace("_name", "_sort_index")
        self._emit(f'{{{place}"name":"{sort}","args":{{"sort_index":{order}}}}}')
