"""The events of one monitored process within a trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from msmon.conversion.targets.event_order import InOrderOfEnds
from msmon.conversion.targets.tracks import ProcessTracks, SeenIds, Track
from msmon.records.batch import Batch, Column, printable
from msmon.records.durations import are_spans
from msmon.records.kinds import ActivityKind, MemcpyKind, SourceKind
from msmon.records.layout import API_KINDS, LAYOUTS
from msmon.records.markers import MarkerEvents

_HOUR_NS = 3600 * 10**9

_FLOW_ID_BITS = 42
"""Correlation ids below this many bits are told apart; with the process number above
them a flow id still fits the 53 bits of a JavaScript number."""

_COPY_KINDS = {item.value: item.name for item in MemcpyKind}


class TraceClock:
    """From wall clock times to those of the trace, which count from one base."""

    def __init__(self) -> None:
        self.base_ns: int | None = None
        """Wall clock of time 0; None before the first record."""

    def begin(self, start_ns: Column) -> None:
        """Set the base by the first records, one hour before the one in the middle.

        So one record of a clock that was wrong moves no other away from where a double is exact.
        """
        if self.base_ns is None:
            self.base_ns = int(np.sort(start_ns)[len(start_ns) // 2]) - _HOUR_NS

    def shown(self, time_ns: int) -> str:
        """Return a time in µs since the base, with three decimals."""
        assert self.base_ns is not None
        return _us(time_ns - self.base_ns)


class TraceProcess:
    """One monitored process within a trace.

    ``untimed`` counts records whose times are none (:mod:`msmon.records.durations`), ``no_place``
    external correlations and ranges that overlap too many others. None of them is drawn.
    """

    def __init__(
        self, emit: Callable[[str], None], clock: TraceClock, tracks: ProcessTracks, number: int
    ) -> None:
        self.untimed = 0
        self.no_place = 0
        self._emit = emit
        self._clock = clock
        self._tracks = tracks
        self._flow_base = number << _FLOW_ID_BITS
        self._launched = SeenIds()
        self._markers = InOrderOfEnds()

    def write(self, batch: Batch) -> None:
        """Draw records of a kind other than Marker."""
        if batch.kind is ActivityKind.ExternalCorrelation:
            self.no_place += len(batch)
            return
        timed = batch.select(self._timed(batch.records))
        if not len(timed):
            return
        if batch.kind in API_KINDS:
            self._write_api(timed)
        elif batch.kind is ActivityKind.Kernel:
            self._write_kernels(timed)
        else:
            self._write_others(timed)

    def write_markers(self, markers: MarkerEvents) -> None:
        """Draw ranges and marks. Ranges that overlap in part get tracks of their own.

        The last ones wait for what may still come before them; :meth:`finish` draws them.
        """
        events = markers.events.take(np.flatnonzero(self._timed(markers.events)))
        for part in self._markers.add(MarkerEvents(events, markers.strings)):
            self._draw_markers(part)

    def finish(self) -> None:
        """Draw what still waits."""
        for part in self._markers.take_all():
            self._draw_markers(part)

    def _timed(self, records: Column) -> Column:
        """Return which records have usable times, count the others, and begin the clock."""
        usable = are_spans(records["start_ns"], records["end_ns"])
        count = int(usable.sum())
        self.untimed += len(records) - count
        if count:
            self._clock.begin(records["start_ns"][usable])
        return usable

    def _draw_markers(self, markers: MarkerEvents) -> None:
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
            owner = device if on_device else None
            args = f'"id":{number},"domain":{names[domain]}'
            if mark:
                self._instant(self._tracks.first_lane(owner, lane), start_ns, names[name], args)
                continue
            track = self._tracks.lane(owner, lane, start_ns, end_ns)
            if track is None:
                self.no_place += 1
            else:
                self._slice(track, start_ns, end_ns, names[name], "marker", args)

    def _write_api(self, batch: Batch) -> None:
        names = [json.dumps(printable(text)) for text in batch.strings]
        fields = ("start_ns", "end_ns", "thread_id", "correlation_id", "name")
        for start_ns, end_ns, thread, correlation, name in _rows(batch.records, fields):
            track = self._tracks.thread(thread, batch.kind.name)
            args = f'"correlation_id":{correlation}'
            self._slice(track, start_ns, end_ns, names[name], batch.kind.name, args)
            if correlation and self._launched.add(correlation):
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
            self._slice(track, start_ns, end_ns, names[name], "Kernel", args)
            if correlation:
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
    ) -> None:
        self._emit(
            f'{{"ph":"X","name":{name},"cat":"{category}","pid":{track.pid},"tid":{track.tid},'
            f'"ts":{self._clock.shown(start_ns)},"dur":{_us(end_ns - start_ns)},"args":{{{args}}}}}'
        )

    def _instant(self, track: Track, at_ns: int, name: str, args: str) -> None:
        self._emit(
            f'{{"ph":"i","s":"t","name":{name},"cat":"marker","pid":{track.pid},'
            f'"tid":{track.tid},"ts":{self._clock.shown(at_ns)},"args":{{{args}}}}}'
        )

    def _flow(self, phase: str, track: Track, at_ns: int, correlation: int) -> None:
        number = self._flow_base | correlation & ((1 << _FLOW_ID_BITS) - 1)
        binding = ',"bp":"e"' if phase == "f" else ""
        self._emit(
            f'{{"ph":"{phase}","id":{number},"name":"launch","cat":"launch",'
            f'"pid":{track.pid},"tid":{track.tid},"ts":{self._clock.shown(at_ns)}{binding}}}'
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
        return "null"  # JSON has no NaN and no infinity
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
