"""Reading JSONL files back into batches, skipping and counting what is damaged."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from msmon.conversion.building import VALUE_ERRORS, BatchBuilder
from msmon.conversion.marker_records import DeviceEvent, HostEvent, MarkerJoiner
from msmon.conversion.source import Source
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind, CommunicationDataType
from msmon.records.layout import LAYOUTS
from msmon.sessions import UNKNOWN_RANK, Gap
from msmon.sinks.jsonl.lines import LINE_SHAPES

MAX_LINE_BYTES = 16 << 20
"""A longer line is no line of ours; it is read, and counted as damaged, in pieces of this size."""

_CHUNK_BYTES = 4 << 20

_DATA_TYPES = {item.name: item.value for item in CommunicationDataType}


def keys_of(kind: ActivityKind) -> tuple[str, ...]:
    """Return the key of each field of a kind, in the order of the record's fields."""
    return tuple(field.json_key for field in LAYOUTS[kind].fields)


class JsonlSource(Source):
    """The lines of one process, rotated over one or several files."""

    def __init__(self, paths: Iterable[Path]) -> None:
        super().__init__(paths)
        self.kinds = frozenset(_kinds_in(self.paths))
        self._ready: list[Batch] = []
        self._builders = {kind: BatchBuilder(kind, self._give) for kind in ActivityKind}
        self._joiner = MarkerJoiner(self._builders[ActivityKind.Marker].add)
        self._readers = {kind.name: self._reader(kind) for kind in LINE_SHAPES}
        self._readers["Marker"] = self._read_marker
        self._readers["gap"] = self._read_gap
        self._readers["parallel_group_info"] = self._read_group_info
        self._readers["rank_device_map"] = self._read_rank

    def batches(self, advance: Callable[[int], None]) -> Iterator[Batch]:
        for path in self.paths:
            with path.open("rb") as file:
                while line := file.readline(MAX_LINE_BYTES):
                    self._read_line(line)
                    advance(len(line))
                    if self._ready:
                        yield from self._take()
        self._joiner.flush()
        for builder in self._builders.values():
            builder.flush()
        yield from self._take()
        self.skipped += sum(builder.skipped for builder in self._builders.values())

    def _give(self, batch: Batch) -> None:
        if batch.kind is ActivityKind.Communication:
            # collectives are numbered within steps, which the markers before them tell
            self._joiner.flush()
            self._builders[ActivityKind.Marker].flush()
        self._ready.append(batch)

    def _take(self) -> list[Batch]:
        taken = self._ready[:]
        self._ready.clear()
        return taken

    def _read_line(self, line: bytes) -> None:
        if line.isspace():
            return
        try:
            values = json.loads(line)
            self._readers[values["kind"]](values)
        except (*VALUE_ERRORS, KeyError, RecursionError):
            self.skipped += 1

    def _reader(self, kind: ActivityKind) -> Callable[[dict[str, Any]], None]:
        add = self._builders[kind].add
        row_of = itemgetter(*keys_of(kind))
        if kind is not ActivityKind.Communication:
            return lambda values: add(row_of(values))

        def read_communication(values: dict[str, Any]) -> None:
            unknown = CommunicationDataType.INVALID_TYPE.value
            values["dataType"] = _DATA_TYPES.get(values["dataType"], unknown)
            add(row_of(values))

        return read_communication

    def _read_marker(self, values: dict[str, Any]) -> None:
        number, start_ns, end_ns = values["id"], values["startNs"], values["endNs"]
        mark = start_ns == end_ns
        if values["sourceKind"] == "Device":
            self._joiner.device(
                DeviceEvent(
                    number,
                    start_ns,
                    end_ns,
                    mark,
                    values["deviceId"],
                    values["streamId"],
                    values["name"],
                    values["domain"],
                )
            )
            return
        place = (values["processId"], values["threadId"])
        self._joiner.host(
            HostEvent(
                number, start_ns, end_ns, mark, *place, *place, values["name"], values["domain"]
            )
        )

    def _read_gap(self, values: dict[str, Any]) -> None:
        names = [field.name for field in dataclasses.fields(Gap)]
        keys = ("stage", "startNs", "endNs", "records", "reason")
        self.gaps.append(Gap(**dict(zip(names, itemgetter(*keys)(values)))))

    def _read_group_info(self, values: dict[str, Any]) -> None:
        self.notes["parallel_group_info"] = str(values["value"])

    def _read_rank(self, values: dict[str, Any]) -> None:
        if self.process.rank == UNKNOWN_RANK:
            self.process = dataclasses.replace(self.process, rank=int(values["rank"]))


def _kinds_in(paths: Iterable[Path]) -> set[ActivityKind]:
    """Return the kinds whose lines occur, by a plain search: outputs want to know beforehand."""
    needles = {kind: f'"kind":"{kind.name}"'.encode() for kind in ActivityKind}
    overlap = max(map(len, needles.values()))
    found: set[ActivityKind] = set()
    for path in paths:
        with path.open("rb") as file:
            tail = b""
            while chunk := file.read(_CHUNK_BYTES):
                text = tail + chunk
                found.update(
                    kind for kind in needles if kind not in found and needles[kind] in text
                )
                tail = text[-overlap:]
    return found
