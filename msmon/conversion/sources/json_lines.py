"""Reading JSONL files back into batches.

A line that is no record (torn, no JSON, of an unknown kind, with a wrong value) is skipped and
counted. What one file can cost is bounded: lines have a greatest length, and rows are given on
when the lines they came from have a certain size, however few they are.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

from msmon.conversion.sources import checked_values as checked
from msmon.conversion.sources.checked_values import VALUE_ERRORS
from msmon.conversion.sources.closing_lines import Closing
from msmon.conversion.sources.marker_joiner import DeviceEvent, HostEvent, MarkerJoiner
from msmon.conversion.sources.record_builder import RecordBuilder
from msmon.conversion.sources.source import Source
from msmon.records.batch import Batch
from msmon.records.durations import are_times
from msmon.records.kinds import INVALID_ID, ActivityKind, CommunicationDataType
from msmon.records.layout import LAYOUTS
from msmon.sessions import UNKNOWN_RANK
from msmon.sinks.jsonl.lines import LINE_SHAPES
from msmon.sinks.regular_files import open_regular

MAX_RECORD_BYTES = 4 << 20
"""Longest line of a record. JSON of this size takes some 100 MB when it is all brackets."""

MAX_LINE_BYTES = 32 << 20
"""Longest line of the group info, which names every communication group of a job."""

MAX_DAMAGE_BYTES = 256 << 20
"""A file with so many bytes and no end of a line is given up: it is no JSONL file."""

LINE_BYTES_PER_BATCH = 32 << 20
"""Rows are given on as batches when their lines have this size."""

_CHUNK_BYTES = 4 << 20
_GROUP_INFO = b'{"kind":"parallel_group_info","value":'
"""How the line of the group info begins; its value, a text, is all that follows."""

_DATA_TYPES = {item.name: item.value for item in CommunicationDataType}
_U64 = 2**64 - 1


def keys_of(kind: ActivityKind) -> tuple[str, ...]:
    """Return the key of each field of a kind, in the order of the record's fields."""
    return tuple(field.json_key for field in LAYOUTS[kind].fields)


class JsonlSource(Source):
    """The lines of one process, rotated over one or several files."""

    def __init__(self, paths: Iterable[Path], closing: Closing | None = None) -> None:
        """Look which kinds there are. ``closing``: the session's closing line.

        Raises OSError when a file can't be read.
        """
        super().__init__(paths)
        self._span_is_told = closing is not None and closing.start_ns > 0
        if closing is not None:
            self.process = dataclasses.replace(self.process, host=closing.host)
            self.start_ns, self.end_ns = closing.start_ns, closing.end_ns
        self.kinds = frozenset(_kinds_in(self.paths))
        self._ready: list[Batch] = []
        self._builders = {kind: RecordBuilder(kind, self._give) for kind in ActivityKind}
        self._joiner = MarkerJoiner(self._builders[ActivityKind.Marker].add)
        self._readers = {kind.name: self._reader(kind) for kind in LINE_SHAPES}
        self._readers["Marker"] = self._read_marker
        self._readers["gap"] = self._read_gap
        self._readers["parallel_group_info"] = self._read_group_info
        self._readers["rank_device_map"] = self._read_rank

    def batches(self, advance: Callable[[int], None]) -> Iterator[Batch]:
        for path in self.paths:
            with _open(path) as file:
                yield from self._file(path, file, advance)
        self._joiner.flush()
        self._flush()
        yield from self._take()
        self.skipped += sum(builder.skipped for builder in self._builders.values())

    def _file(self, path: Path, file: IO[bytes], advance: Callable[[int], None]) -> Iterator[Batch]:
        """Yield the batches of one file, up to the size that it has now."""
        left = os.fstat(file.fileno()).st_size
        unflushed = damage = 0
        while left > 0 and (line := file.readline(min(left, MAX_LINE_BYTES))):
            left -= len(line)
            whole = line.endswith(b"\n") or left <= 0
            if whole and not damage:
                self._read_line(line)
            elif not damage:
                self.skipped += 1  # once, however many pieces this line has
            damage = 0 if whole else damage + len(line)
            advance(len(line))
            if damage > MAX_DAMAGE_BYTES:
                self.problems.append(f"{path.name}: {damage} bytes without an end of a line")
                return
            unflushed += len(line)
            if unflushed > LINE_BYTES_PER_BATCH:
                self._flush()
                unflushed = 0
            if self._ready:
                yield from self._take()

    def _give(self, batch: Batch) -> None:
        if batch.kind is ActivityKind.Communication:
            # Targets number collectives within steps, so the markers of the steps go first.
            self._joiner.flush_hosts()
            self._builders[ActivityKind.Marker].flush()
        self._widen_session(batch)
        self._ready.append(batch)

    def _widen_session(self, batch: Batch) -> None:
        """Let the session begin and end with its records where no line says when it did.

        Lines of msMonitor and of a session that has not ended don't. The start is known with
        the first batch, as targets need it, and hardly changes later.
        """
        if self._span_is_told:
            return
        names = batch.records.dtype.names or ()
        for field in {"start_ns", "timestamp_ns", "end_ns"}.intersection(names):
            times = batch.records[field]
            times = times[are_times(times)]
            if len(times):
                self.start_ns = min(self.start_ns or _U64, int(times.min()))
                self.end_ns = max(self.end_ns, int(times.max()))

    def _flush(self) -> None:
        for builder in self._builders.values():
            builder.flush()

    def _take(self) -> list[Batch]:
        taken = self._ready[:]
        self._ready.clear()
        return taken

    def _read_line(self, line: bytes) -> None:
        if line.isspace():
            return
        try:
            values = json.loads(line) if len(line) <= MAX_RECORD_BYTES else _long_line(line)
            self._readers[values["kind"]](values)
        except (*VALUE_ERRORS, KeyError, RecursionError):
            self.skipped += 1

    def _reader(self, kind: ActivityKind) -> Callable[[dict[str, Any]], None]:
        """Return what turns a line of this kind into a row of its builder."""
        add = self._builders[kind].add
        row_of = itemgetter(*keys_of(kind))
        plain = frozenset((int, float, str, type(None)))

        def read(values: dict[str, Any]) -> None:
            row = row_of(values)
            if not plain.issuperset(map(type, row)):
                raise TypeError("a list or table where a value should be")
            add(row)

        if kind is not ActivityKind.Communication:
            return read

        def read_communication(values: dict[str, Any]) -> None:
            unknown = CommunicationDataType.INVALID_TYPE.value
            values["dataType"] = _DATA_TYPES.get(values["dataType"], unknown)
            read(values)

        return read_communication

    def _read_marker(self, values: dict[str, Any]) -> None:
        number, start_ns, end_ns = (
            checked.whole(values[key], 0, _U64) for key in ("id", "startNs", "endNs")
        )
        mark = start_ns == end_ns
        texts = (checked.text(values["name"]), checked.text(values["domain"]))
        on_device = values["sourceKind"] == "Device"
        keys = ("deviceId", "streamId") if on_device else ("processId", "threadId")
        outer, inner = (checked.whole(values[key], 0, INVALID_ID) for key in keys)
        if on_device:
            self._joiner.device(DeviceEvent(number, start_ns, end_ns, mark, outer, inner, *texts))
        else:
            ends = (outer, inner, outer, inner)  # the file tells of one thread only
            self._joiner.host(HostEvent(number, start_ns, end_ns, mark, *ends, *texts))

    def _read_gap(self, values: dict[str, Any]) -> None:
        row_of = itemgetter("stage", "startNs", "endNs", "records", "reason")
        self.keep_gap(checked.gap(*row_of(values)))

    def _read_group_info(self, values: dict[str, Any]) -> None:
        self.notes["parallel_group_info"] = checked.text(values["value"], MAX_LINE_BYTES)

    def _read_rank(self, values: dict[str, Any]) -> None:
        rank = checked.rank(values["rank"])
        if self.process.rank == UNKNOWN_RANK:
            self.process = dataclasses.replace(self.process, rank=rank)


def _long_line(line: bytes) -> dict[str, Any]:
    """Return the values of a line that only the group info may be. Raises ValueError.

    Only the text in it is parsed: a long line of brackets would become a gigabyte of lists.
    """
    text = line.strip()
    if not (text.startswith(_GROUP_INFO + b'"') and text.endswith(b'"}')):
        raise ValueError("too long")
    return {"kind": "parallel_group_info", "value": json.loads(text[len(_GROUP_INFO) : -1])}


def _open(path: Path) -> IO[bytes]:
    return open(open_regular(path, os.O_RDONLY, follow=True), "rb")


def _kinds_in(paths: Iterable[Path]) -> set[ActivityKind]:
    """Return the kinds whose lines occur: targets want to know them before the first record.

    A plain search for ``"kind":"Kernel"`` is enough. The same text within a name costs nothing.
    """
    needles = {kind: f'"kind":"{kind.name}"'.encode() for kind in ActivityKind}
    overlap = max(map(len, needles.values()))
    found: set[ActivityKind] = set()
    for path in paths:
        with _open(path) as file:
            left = os.fstat(file.fileno()).st_size
            tail, since_line = b"", 0
            while since_line <= MAX_DAMAGE_BYTES and (chunk := file.read(min(left, _CHUNK_BYTES))):
                left -= len(chunk)
                since_line = 0 if b"\n" in chunk else since_line + len(chunk)
                text = tail + chunk
                found.update(kind for kind in needles.keys() - found if needles[kind] in text)
                tail = text[-overlap:]
    return found
