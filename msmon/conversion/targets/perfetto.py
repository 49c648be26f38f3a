"""Traces for Perfetto and chrome://tracing, in the trace-event JSON format.

Complete events ("X") for calls, kernels and copies, ranges on tracks of their own,
instants ("i") for marks, and flow arrows ("s" to "f") from the call that launched a
kernel to the kernel, by correlation id. Times are µs with three decimals, counted from
one hour before the first record: a double holds them exactly, unlike wall-clock times.
``otherData.base_ns`` is what to add.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msmon.conversion.targets.scratch import Scratch
from msmon.conversion.targets.tracks import ProcessTracks, SeenIds, Track, numbering
from msmon.records.batch import Batch, Column, printable
from msmon.records.kinds import ActivityKind, MemcpyKind, SourceKind
from msmon.records.layout import API_KINDS, LAYOUTS
from msmon.records.markers import MarkerEvents
from msmon.sessions import ProcessInfo

_HOUR_NS = 3600 * 10**9
_FAR_NS = 20 * 365 * 24 * _HOUR_NS
"""Records further than this from the first one have no wall-clock times."""

_FLOW_ID_BITS = 42
"""Correlation ids below this many bits are told apart; with the process number above
them a flow id still fits the 53 bits of a JavaScript number."""

_COPY_KINDS = {item.value: item.name for item in MemcpyKind}


class PerfettoTrace:
    """Writes one trace of any number of processes. :meth:`close` puts it in its place."""

    def __init__(self, path: Path) -> None:
        """Begin a trace, out of sight until it is complete. Raises OSError."""
        self._path = path
        self._scratch = Scratch(path.parent)
        self._unfinished = self._scratch.path / "trace.json"
        self._file = self._unfinished.open("w", encoding="ascii", buffering=1 << 20)
        self._base_ns: int | None = None
        self._numbers = numbering()
        self._processes = 0
        self._comma = ""
        self._file.write('{"displayTimeUnit":"ns","traceEvents":[')

    def process(self, process: ProcessInfo) -> TraceProcess:
        """Add a process. It is written to the end before the next one is added."""
        self._processes += 1
        tracks = ProcessTracks(process, self._processes, self._numbers, self._name_track)
        return TraceProcess(self, tracks, self._processes)

    def close(self) -> None:
        """Complete the file. Raises OSError."""
        self._file.write(f'\n],"otherData":{{"base_ns":"{self._base_ns or 0}"}}}}\n')
        self._file.close()
        self._unfinished.chmod(0o640)
        self._unfinished.replace(self._path)
        self._scratch.remove()

    def discard(self) -> None:
        """Remove everything written so far."""
        with contextlib.suppress(OSError):  # what could not be written is not wanted any more
            self._file.close()
        self._scratch.remove()

    def emit(self, event: str) -> None:
        """Write one event, given as a JSON object."""
        self._file.write(f"{self._comma}\n{event}")
        self._comma = ","

    def offset_ns(self, start_ns: int) -> int | None:
        """Return ns since the base of the trace, or None for what is no wall-clock time.

        The first time asked for sets the base.
        """
        if self._base_ns is None:
            self._base_ns = max(0, start_ns - _HOUR_NS)
        offset = start_ns - self._base_ns
        return offset if -_FAR_NS < offset < _FAR_NS else None

    def _name_track(self, what: str, track: Track, name: str, order: int) -> None:
        place = f'"ph":"M","pid":{track.pid},"tid":{track.tid},'
        self.emit(f'{{{place}"name":"{what}","args":{{"name":{json.dumps(name)}}}}}')
        sort = what.replace("_name", "_sort_index")
        self.emit(f'{{{place}"name":"{sort}","args":{{"sort_index":{order}}}}}')


class TraceProcess:
    """One monitored process within a trace.

    ``untimed`` counts what can't be drawn: records without usable times, and ranges that overlap
    too many others.
    """

    def __init__(self, trace: PerfettoTrace, tracks: ProcessTracks, number: int) -> None:
        self.untimed = 0
        self._trace = trace
        self._tracks = tracks
        self._flow_base = number << _FLOW_ID_BITS
        self._launched = SeenIds()

    def write(self, batch: Batch) -> None:
        """Draw records of a kind other than Marker."""
        if batch.kind in API_KINDS:
            self._write_api(batch)
        elif batch.kind is ActivityKind.Kernel:
            self._write_kernels(batch)
        elif batch.kind is ActivityKind.ExternalCorrelation:
            self.untimed += len(batch)
        else:
            self._write_others(batch)

    def write_markers(self, markers: MarkerEvents) -> None:
        """Draw ranges and marks. Ranges that overlap in part get tracks of their own."""
        names = [json.dumps(printable(text)) for text in markers.strings]
        domains = [printable(text) for text in markers.strings]
        fields = (
            "start_ns", "end_ns", "source_kind", "device_id", "stream_id", "thread_id",
            "name", "domain", "id", "instantaneous",
        )  # fmt: skip
        for (
            start_ns, end_ns, source, device, stream, thread, name, domain, number, mark,
        ) in _rows(markers.events, fields):  # fmt: skip
            on_device = source == SourceKind.DEVICE
            place = f"stream {stream}" if on_device else f"thread {thread}"
            lane = f"{place} markers {domains[domain]}".rstrip()
            track = self._tracks.lane(device if on_device else None, lane, start_ns, end_ns)
            if track is None:
                self.untimed += 1
                continue
            args = f'"id":{number},"domain":{names[domain]}'
            if mark:
                self._instant(track, start_ns, names[name], args)
            else:
                self._slice(track, start_ns, end_ns, names[name], "marker", args)

    def _write_api(self, batch: Batch) -> None:
        names = [json.dumps(printable(text)) for text in batch.strings]
        fields = ("start_ns", "end_ns", "thread_id", "correlation_id", "name")
        for start_ns, end_ns, thread, correlation, name in _rows(batch.records, fields):
            track = self._tracks.thread(thread, batch.kind.name)
            args = f'"correlation_id":{correlation}'
            drawn = self._slice(track, start_ns, end_ns, names[name], batch.kind.name, args)
            if drawn and correlation and self._launched.add(correlation):
                self._flow("s", track, start_ns, correlation)

    def _write_kernels(self, batch: Batch) -> None:
        names = [json.dumps(printable(text)) for text in batch.strings]
        fields = (
            "start_ns", "end_ns", "device_id", "stream_id", "correlation_id", "name", "type",
        )  # fmt: skip
        for start_ns, end_ns, device, stream, correlation, name, type_ in _rows(
            batch.records, fields
        ):
            track = self._tracks.stream(device, stream)
            args = f'"correlation_id":{correlation},"type":{names[type_]}'
            drawn = self._slice(track, start_ns, end_ns, names[name], "Kernel", args)
            if drawn and correlation:
                self._flow("f", track, start_ns, correlation)

    def _write_others(self, batch: Batch) -> None:
        """Draw communication and memory activity, each on a track beside the kernels."""
        name_of, arguments = _NAMES[batch.kind], LAYOUTS[batch.kind].details
        columns = batch.to_numpy()
        fields = tuple(columns)
        what = _TRACK_NAMES[batch.kind]
        for values in zip(*(columns[field].tolist() for field in fields)):
            record = dict(zip(fields, values))
            track = self._tracks.stream(record["device_id"], record["stream_id"], what)
            args = ",".join(f'"{key}":{_json(record[key])}' for key in arguments)
            name = json.dumps(printable(name_of(record)))
            self._slice(track, record["start_ns"], record["end_ns"], name, batch.kind.name, args)

    def _slice(
        self, track: Track, start_ns: int, end_ns: int, name: str, category: str, args: str
    ) -> bool:
        offset = self._trace.offset_ns(start_ns)
        if offset is None or end_ns < start_ns:
            self.untimed += 1
            return False
        self._trace.emit(
            f'{{"ph":"X","name":{name},"cat":"{category}","pid":{track.pid},"tid":{track.tid},'
            f'"ts":{_us(offset)},"dur":{_us(end_ns - start_ns)},"args":{{{args}}}}}'
        )
        return True

    def _instant(self, track: Track, at_ns: int, name: str, args: str) -> None:
        offset = self._trace.offset_ns(at_ns)
        if offset is None:
            self.untimed += 1
            return
        self._trace.emit(
            f'{{"ph":"i","s":"t","name":{name},"cat":"marker","pid":{track.pid},'
            f'"tid":{track.tid},"ts":{_us(offset)},"args":{{{args}}}}}'
        )

    def _flow(self, phase: str, track: Track, at_ns: int, correlation: int) -> None:
        offset = self._trace.offset_ns(at_ns)
        assert offset is not None
        number = self._flow_base | correlation & ((1 << _FLOW_ID_BITS) - 1)
        binding = ',"bp":"e"' if phase == "f" else ""
        self._trace.emit(
            f'{{"ph":"{phase}","id":{number},"name":"launch","cat":"launch",'
            f'"pid":{track.pid},"tid":{track.tid},"ts":{_us(offset)}{binding}}}'
        )


def _rows(records: Column, fields: Iterable[str]) -> Iterable[tuple[Any, ...]]:
    return zip(*(records[field].tolist() for field in fields))


def _us(nanoseconds: int) -> str:
    sign = "-" if nanoseconds < 0 else ""
    whole, thousandths = divmod(abs(nanoseconds), 1000)
    return f"{sign}{whole}.{thousandths:03d}"


def _json(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(printable(value))
    if isinstance(value, float) and value - value != 0:
        return f'"{value}"'  # JSON has no NaN and no infinity
    return json.dumps(value)


def _copy_name(record: dict[str, Any]) -> str:
    return f"MemCpy {_COPY_KINDS.get(record['copy_kind'], record['copy_kind'])}"


_NAMES: dict[ActivityKind, Callable[[dict[str, Any]], str]] = {
    ActivityKind.Communication: lambda record: str(record["name"]),
    ActivityKind.Hccl: lambda record: str(record["name"]),
    ActivityKind.Memory: lambda record: "release" if record["operation"] else "allocation",
    ActivityKind.MemSet: lambda record: "MemSet",
    ActivityKind.MemCpy: _copy_name,
}
_TRACK_NAMES = {
    ActivityKind.Communication: "communication",
    ActivityKind.Hccl: "HCCL",
    ActivityKind.Memory: "memory",
    ActivityKind.MemSet: "copies",
    ActivityKind.MemCpy: "copies",
}
