"""Reading exported databases back into batches, msMonitor's files and msmon's.

Tables are read one after the other. A damaged one ends where the damage begins, and the others
go on. Integers from 2^63 on are stored as negative ones (value - 2^64).

Two things are not in a file and therefore not restored: the stream of a collective, and whether
calls of level "node" came from kind API or NodeAPI (they are taken for API).
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msmon.conversion.sources import checked_values as checked
from msmon.conversion.sources.checked_values import VALUE_ERRORS, unsigned
from msmon.conversion.sources.database_access import (
    MAX_NUMBERS_BYTES,
    MAX_TEXT_BYTES,
    ReadOnlyDatabase,
)
from msmon.conversion.sources.database_columns import (
    COLLECTIVES,
    HOST_EVENTS,
    MARKER_TASK,
    all_columns,
    id32,
    marker_id,
    split_tid,
    task_query,
)
from msmon.conversion.sources.database_facts import (
    API_KINDS_OF_LEVELS,
    Facts,
    read_facts,
    read_strings,
)
from msmon.conversion.sources.marker_joiner import DeviceEvent, HostEvent, MarkerJoiner
from msmon.conversion.sources.record_builder import RecordBuilder
from msmon.conversion.sources.source import Source
from msmon.errors import SinkError
from msmon.records.batch import Batch
from msmon.records.kinds import INVALID_ID, ActivityKind
from msmon.sessions import UNKNOWN_RANK
from msmon.sinks.sqlite import schema
from msmon.sinks.sqlite.copies import lacks_log

_U64 = 2**64
_FIRST_MARKER_CONNECTION = schema.MARKER_CONNECTION_OFFSET
"""A task without a row in another table is a marker from this connection id on. Needed where the
text of its task type is missing."""

_Reader = tuple[str, Callable[[Any], None]]
"""A query, and what to do with a row of it."""

_MISSING_LOG = (
    "the session had not ended, and its write-ahead log {0}-wal is not beside the file; copy both, "
    "or convert after the session's end"
)

_COPY_KINDS = {operation: copy_kind for copy_kind, operation in enumerate(schema.MEMCPY_OPERATIONS)}


class DatabaseSource(Source):
    """One database file. Raises SinkError when it is none, or not an exported one."""

    def __init__(self, path: Path) -> None:
        super().__init__([path])
        missing_log = lacks_log(path, follow=True)
        try:
            with ReadOnlyDatabase(path) as database:
                self._facts = read_facts(database)
        except sqlite3.Error as error:
            raise SinkError(f"can't be read as a database: {error}") from error
        self._ready: list[Batch] = []
        self._builders = {kind: RecordBuilder(kind, self._ready.append) for kind in ActivityKind}
        self._joiner = MarkerJoiner(self._builders[ActivityKind.Marker].add)
        self._strings: dict[int, str] = {}
        """Only while the records are read: many sources wait for their turn."""
        self._unnamed = 0
        if "META_DATA" not in self._facts.tables and not self._readers():
            reason = f"; {_MISSING_LOG.format(path.name)}" if missing_log else ""
            raise SinkError(f"this database holds none of the tables of an exported file{reason}")
        self._take_facts(self._facts)
        if missing_log and self._facts.end == schema.NOT_ENDED:
            self.problems.append(
                f"what was written last is missing: {_MISSING_LOG.format(path.name)}"
            )

    def _take_facts(self, facts: Facts) -> None:
        process = dataclasses.replace(self.process, host=facts.host)
        if process.rank == UNKNOWN_RANK and facts.rank is not None:
            process = dataclasses.replace(process, rank=facts.rank)
        if not process.pid and facts.pid is not None:
            process = dataclasses.replace(process, pid=facts.pid)
        self.process = process
        self.kinds = facts.api_kinds
        self.start_ns, self.end_ns = facts.start_ns, facts.end_ns
        self.notes = facts.notes
        self.problems = facts.problems
        self.skipped = facts.skipped

    def batches(self, advance: Callable[[int], None]) -> Iterator[Batch]:
        try:
            with ReadOnlyDatabase(self.paths[0]) as database:
                self._strings, skipped = read_strings(database, self.problems)
                self.skipped += skipped
                readers = self._readers()
                share = self.size_bytes // max(1, len(readers))
                for table, (sql, read) in readers.items():
                    yield from self._read_table(database, table, sql, read)
                    advance(share)
        except sqlite3.Error as error:
            self.skipped += 1
            self.problems.append(f"it can't be opened any more: {error}")
        self._joiner.flush()
        for builder in self._builders.values():
            builder.flush()
        yield from self._take()
        self._strings.clear()
        self.skipped += sum(builder.skipped for builder in self._builders.values())
        if self._unnamed:
            self.problems.append(
                f"{self._unnamed} texts are missing from STRING_IDS; their numbers stand instead"
            )

    def _readers(self) -> dict[str, _Reader]:
        """Return table → (query, what to do with a row) for the tables that exist."""
        api = "SELECT startNs, endNs, type, globalTid, connectionId, name FROM "
        readers: dict[str, _Reader] = {
            "MSTX_EVENTS": (HOST_EVENTS, self._host_event),
            "CANN_API": (f"{api} CANN_API", self._api),
            "MSMON_NODE_API": (f"{api} MSMON_NODE_API", self._node_api),
            "COMMUNICATION_OP": (COLLECTIVES, self._collective),
            "TASK": (task_query(self._facts.tables, self._strings), self._task),
            "MSMON_MEMORY": (all_columns(schema.MEMORY), self._memory),
            "MSMON_HCCL": (all_columns(schema.HCCL), self._hccl),
            "MSMON_EXTERNAL_CORRELATION": (
                all_columns(schema.EXTERNAL_CORRELATION),
                self._external_correlation,
            ),
            "MSMON_GAPS": (
                "SELECT startNs, endNs, stage, kind, records, reason FROM MSMON_GAPS",
                self._gap,
            ),
        }
        return {table: reader for table, reader in readers.items() if table in self._facts.tables}

    def _read_table(
        self, database: ReadOnlyDatabase, table: str, sql: str, read: Callable[[Any], None]
    ) -> Iterator[Batch]:
        longest_row = MAX_TEXT_BYTES if table == schema.GAPS.name else MAX_NUMBERS_BYTES
        try:
            for rows in database.rows(sql, longest_row):
                for row in rows:
                    try:
                        read(row)
                    except VALUE_ERRORS:
                        self.skipped += 1
                yield from self._take()
        except sqlite3.Error as error:
            self.skipped += 1
            self.problems.append(f"table {table} is damaged: {error}")

    def _take(self) -> list[Batch]:
        taken = self._ready[:]
        self._ready.clear()
        return taken

    def _add(self, kind: ActivityKind, *row: Any) -> None:
        self._builders[kind].add(row)

    def _text(self, number: int) -> str:
        text = self._strings.get(number)
        if text is None:
            checked.whole(number, -(2**63), 2**63 - 1)
            self._unnamed += 1
            text = self._strings[number] = f"#{number}"
        return text

    # --- rows of each table -----------------------------------------------------------

    def _task(self, row: Any) -> None:
        start_ns, end_ns, device, stream, connection, type_id, name, *others = row
        copy_size, operation, set_size, value, message, domain = others
        type_text = self._text(type_id)
        device, stream = id32(device), id32(stream)
        unknown = name is None and operation is None and value is None
        if type_text == MARKER_TASK or (unknown and connection >= _FIRST_MARKER_CONNECTION):
            number = marker_id(connection)
            mark = start_ns == end_ns
            texts = ("", "") if message is None else (self._text(message), self._text(domain))
            times_ns = (unsigned(start_ns), unsigned(end_ns))
            event = DeviceEvent(number, *times_ns, mark, device, stream, *texts)
            self._joiner.device(event)
            return
        times = (unsigned(start_ns), unsigned(end_ns), device, stream, unsigned(connection))
        asynchronous = int(type_text.endswith("_ASYNC"))
        if operation is not None:
            copy_kind = _COPY_KINDS.get(operation, 0)
            size = unsigned(copy_size)
            self._add(ActivityKind.MemCpy, copy_kind, size, *times, asynchronous)
        elif value is not None:
            self._add(ActivityKind.MemSet, value, unsigned(set_size), *times, asynchronous)
        else:
            kernel_name = "" if name is None else self._text(name)
            self._add(ActivityKind.Kernel, *times, type_text, kernel_name)

    def _api(self, row: Any) -> None:
        kind = API_KINDS_OF_LEVELS.get(row[2])
        if kind is None:
            self.skipped += 1
            return
        self._add(kind, *self._api_values(row))

    def _node_api(self, row: Any) -> None:
        self._add(ActivityKind.NodeAPI, *self._api_values(row))

    def _api_values(self, row: Any) -> tuple[Any, ...]:
        start_ns, end_ns, level, global_tid, connection, name = row
        correlation = unsigned(connection)
        if level in self._facts.shifted_levels:
            correlation = (correlation - (level << schema.LEVEL_CONNECTION_SHIFT)) % _U64
        process_id, thread_id = split_tid(global_tid)
        times = (unsigned(start_ns), unsigned(end_ns))
        return (*times, process_id, thread_id, correlation, self._text(name))

    def _collective(self, row: Any) -> None:
        start_ns, end_ns, connection, group, data_type, algorithm, count, name, device = row
        self._add(
            ActivityKind.Communication, data_type, unsigned(count), id32(device), INVALID_ID,
            unsigned(start_ns), unsigned(end_ns), self._text(algorithm), self._text(name),
            self._text(group), unsigned(connection),
        )  # fmt: skip

    def _host_event(self, row: Any) -> None:
        start_ns, end_ns, event_type, message, global_tid, end_tid, domain, connection = row
        self._joiner.host(
            HostEvent(
                marker_id(connection),
                unsigned(start_ns),
                unsigned(end_ns),
                event_type == schema.EVENT_MARK,
                *split_tid(global_tid),
                *split_tid(end_tid),
                self._text(message),
                self._text(domain),
            )
        )

    def _memory(self, row: Any) -> None:
        start_ns, end_ns, operation, memory_kind, address, size, device, stream, pid, link = row
        self._add(
            ActivityKind.Memory, operation, memory_kind, unsigned(link), unsigned(start_ns),
            unsigned(end_ns), unsigned(address), unsigned(size), pid, id32(device),
            id32(stream),
        )  # fmt: skip

    def _hccl(self, row: Any) -> None:
        start_ns, end_ns, device, stream, bandwidth, name, group = row
        self._add(
            ActivityKind.Hccl, unsigned(start_ns), unsigned(end_ns), id32(device),
            id32(stream), bandwidth, self._text(name), self._text(group),
        )  # fmt: skip

    def _external_correlation(self, row: Any) -> None:
        external_kind, external_id, connection = row
        self._add(
            ActivityKind.ExternalCorrelation, external_kind, unsigned(external_id),
            unsigned(connection),
        )  # fmt: skip

    def _gap(self, row: Any) -> None:
        start_ns, end_ns, stage, kind, records, reason = row
        counts = None if records is None else {kind: records}
        self.keep_gap(checked.gap(stage, start_ns, end_ns, counts, reason))
