"""From columns of activity records to rows of the database's tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from msmon.records.batch import Batch, Column, printable
from msmon.records.kinds import ActivityKind, SourceKind
from msmon.records.layout import API_KINDS
from msmon.records.markers import MarkerEvents, MarkerPairing
from msmon.sessions import SessionInfo
from msmon.sinks.sqlite import schema
from msmon.sinks.sqlite.collectives import CollectiveNumbering, step_number
from msmon.sinks.sqlite.columns import (
    StringIds,
    constant_or_column,
    finite_or_null,
    global_tid,
    marker_connection,
    signed_ids,
)
from msmon.sinks.sqlite.host_identity import text_hash
from msmon.sinks.sqlite.insert import Cell, Counter, Rows, as_signed

_API_PREFERENCE = (
    ActivityKind.API,
    ActivityKind.NodeAPI,
    ActivityKind.AclAPI,
    ActivityKind.RuntimeAPI,
)


class RowBuilder:
    """Turns the batches of one session into rows. Written by the output's thread only.

    It keeps what rows of different batches share: ids of texts, counters, open markers.
    """

    def __init__(self, session: SessionInfo) -> None:
        self.strings = StringIds()
        self.not_applicable = self.strings.id_of("N/A")
        self.next_task_id = 0
        self.next_op_id = 0
        self.unpaired_markers = 0
        """Marker records that are not, or not yet, part of a range or mark."""
        self.devices: set[int] = set()
        self.steps: set[int] = set()
        self.numbering = CollectiveNumbering()
        self.pairing = MarkerPairing()
        self._pid = session.process.pid
        collected = session.settings.active_kinds & API_KINDS
        self._api_kind = min(collected, key=_API_PREFERENCE.index, default=None)

    def rows(self, batch: Batch) -> Iterator[Rows]:
        """Yield the rows that a batch of any kind becomes."""
        if len(batch) == 0:
            return
        kind = batch.kind
        if kind in API_KINDS:
            yield self._api(batch)
        elif kind == ActivityKind.Kernel:
            yield from self._kernels(batch)
        elif kind == ActivityKind.Communication:
            yield self._communication(batch)
        elif kind == ActivityKind.Marker:
            self.numbering.add_markers(batch)
            self.unpaired_markers += len(batch)
            yield from self._marker_events(self.pairing.add(batch))
        elif kind == ActivityKind.MemCpy:
            yield from self._copies(batch)
        elif kind == ActivityKind.MemSet:
            yield from self._memsets(batch)
        elif kind == ActivityKind.Memory:
            yield self._memory(batch)
        elif kind == ActivityKind.Hccl:
            yield self._hccl(batch)
        else:
            yield self._external_correlation(batch)

    def _api(self, batch: Batch) -> Rows:
        """Return CANN_API rows, or those of NodeAPI's own table.

        A call can be recorded at several levels, all with one correlation id. msprof-analyze
        expects one CANN_API row per connection id. So the first level collected, in the order
        of ``_API_PREFERENCE``, keeps the correlation id. Further levels put their number into
        the bits above it (``level << shift``), so that all ids differ. NodeAPI records the very
        calls of API, so beside API it has a table of its own.
        """
        if self._api_kind is None:
            self._api_kind = batch.kind
        records = batch.records
        level = schema.API_LEVELS[batch.kind.name]
        connection = as_signed(records["correlation_id"])
        doubled = batch.kind == ActivityKind.NodeAPI and self._api_kind == ActivityKind.API
        if batch.kind != self._api_kind and not doubled:
            connection = connection + (level << schema.LEVEL_CONNECTION_SHIFT)
        cells: dict[str, Cell] = {
            "startNs": records["start_ns"],
            "endNs": records["end_ns"],
            "type": level,
            "globalTid": global_tid(records["process_id"], records["thread_id"]),
            "connectionId": connection,
            "name": self.strings.column(batch, records["name"]),
        }
        return Rows(schema.NODE_API if doubled else schema.CANN_API, len(batch), cells)

    def _kernels(self, batch: Batch) -> Iterator[Rows]:
        records = batch.records
        task_type = constant_or_column(self.strings.column(batch, records["type"]))
        task_id = self._task_ids(len(batch))
        yield self._tasks(records, task_type, task_id)
        none = schema.NOT_APPLICABLE
        cells: dict[str, Cell] = {
            **dict.fromkeys(schema.COMPUTE_TASK_INFO.column_names, self.not_applicable),
            "name": self.strings.column(batch, records["name"]),
            "globalTaskId": task_id,
            "blockNum": none,
            "mixBlockNum": none,
            "taskType": task_type,
        }
        yield Rows(schema.COMPUTE_TASK_INFO, len(batch), cells)

    def _tasks(self, records: Column, task_type: Cell, task_id: Counter) -> Rows:
        """Return TASK rows of kernels, copies or memsets: whatever runs on a stream."""
        cells: dict[str, Cell] = {
            **dict.fromkeys(schema.TASK.column_names, schema.NOT_APPLICABLE),
            "startNs": records["start_ns"],
            "endNs": records["end_ns"],
            "deviceId": self._devices(records["device_id"]),
            "connectionId": records["correlation_id"],
            "globalTaskId": task_id,
            "globalPid": self._pid,
            "taskType": task_type,
            "streamId": signed_ids(records["stream_id"]),
        }
        return Rows(schema.TASK, len(records), cells)

    def _communication(self, batch: Batch) -> Rows:
        batch = Batch(
            batch.kind,
            batch.records[np.argsort(batch.records["start_ns"], kind="stable")],
            batch.strings,
        )
        records = batch.records
        first_op = self.next_op_id
        self.next_op_id += len(batch)
        cells: dict[str, Cell] = {
            "opName": self._collective_names(batch),
            "startNs": records["start_ns"],
            "endNs": records["end_ns"],
            "connectionId": records["correlation_id"],
            "groupName": self.strings.column(batch, records["comm_name"]),
            "opId": Counter(first_op),
            "relay": 0,
            "retry": 0,
            "dataType": records["data_type"],
            "algType": self.strings.column(batch, records["alg_type"]),
            "count": records["count"],
            "opType": self.strings.column(batch, records["name"]),
            "deviceId": self._devices(records["device_id"]),
        }
        return Rows(schema.COMMUNICATION_OP, len(batch), cells)

    def _collective_names(self, batch: Batch) -> Column:
        """Return text ids of the names, shape (n,).

        A name is "<operator>_<last three digits of the group's hash>_<number>_1", as msMonitor
        makes it. Example: "hcom_allReduce__101_0_1_681_13000003_1".
        """
        groups = [printable(text) for text in batch.text("comm_name")]
        suffixes = {group: str(text_hash(group))[-3:] for group in set(groups)}
        numbers = self.numbering.numbers(groups, batch.records["start_ns"].tolist())
        names = [
            self.strings.id_of_unique(f"{printable(name)}_{suffixes[group]}_{number}_1")
            for name, group, number in zip(batch.text("name"), groups, numbers)
        ]
        return np.array(names, np.int64)

    def _marker_events(self, paired: MarkerEvents) -> Iterator[Rows]:
        self.unpaired_markers -= 2 * len(paired) - int(paired.events["instantaneous"].sum())
        on_device = paired.events["source_kind"] == SourceKind.DEVICE
        host, device = paired.events[~on_device], paired.events[on_device]
        if len(host):
            yield self._host_events(paired, host)
            yield from self._step_times(paired, host)
        if len(device):
            cells: dict[str, Cell] = {
                **dict.fromkeys(schema.TASK.column_names, schema.NOT_APPLICABLE),
                "startNs": device["start_ns"],
                "endNs": device["end_ns"],
                "deviceId": self._devices(device["device_id"]),
                "connectionId": marker_connection(device["id"]),
                "globalTaskId": self._task_ids(len(device)),
                "globalPid": self._pid,
                "taskType": self.strings.id_of("MsTx"),
                "streamId": signed_ids(device["stream_id"]),
            }
            yield Rows(schema.TASK, len(device), cells)

    def _host_events(self, paired: MarkerEvents, host: Column) -> Rows:
        mark_or_range = np.where(host["instantaneous"], schema.EVENT_MARK, schema.EVENT_RANGE)
        cells: dict[str, Cell] = {
            "startNs": host["start_ns"],
            "endNs": host["end_ns"],
            "eventType": mark_or_range,
            "rangeId": schema.NOT_APPLICABLE,
            "category": schema.NOT_APPLICABLE,
            "message": self.strings.column(paired, host["name"]),
            "globalTid": global_tid(host["process_id"], host["thread_id"]),
            "endGlobalTid": global_tid(host["end_process_id"], host["end_thread_id"]),
            "domainId": self.strings.column(paired, host["domain"]),
            "connectionId": marker_connection(host["id"]),
        }
        return Rows(schema.MSTX_EVENTS, len(host), cells)

    def _step_times(self, paired: MarkerEvents, host: Column) -> Iterator[Rows]:
        """Yield STEP_TIME rows for the first range of each step."""
        steps = np.array([step_number(text) for text in paired.strings], np.int64)[host["name"]]
        chosen = []
        for place in np.flatnonzero((steps >= 0) & ~host["instantaneous"]).tolist():
            if int(steps[place]) not in self.steps:
                self.steps.add(int(steps[place]))
                chosen.append(place)
        if chosen:
            cells: dict[str, Cell] = {
                "id": steps[chosen],
                "startNs": host["start_ns"][chosen],
                "endNs": host["end_ns"][chosen],
            }
            yield Rows(schema.STEP_TIME, len(chosen), cells)

    def _copies(self, batch: Batch) -> Iterator[Rows]:
        records = batch.records
        task_id = self._task_ids(len(batch))
        yield self._tasks(records, self._sync_or_async(records, "MEMCPY"), task_id)
        last = len(schema.MEMCPY_OPERATIONS) - 1
        operations = np.array(schema.MEMCPY_OPERATIONS, np.int64)
        copy_kinds = np.where(records["copy_kind"] <= last, records["copy_kind"], 0)
        cells: dict[str, Cell] = {
            "globalTaskId": task_id,
            "size": records["size_bytes"],
            "memcpyOperation": operations[copy_kinds],
        }
        yield Rows(schema.MEMCPY_INFO, len(batch), cells)

    def _memsets(self, batch: Batch) -> Iterator[Rows]:
        records = batch.records
        task_id = self._task_ids(len(batch))
        yield self._tasks(records, self._sync_or_async(records, "MEMSET"), task_id)
        cells: dict[str, Cell] = {
            "globalTaskId": task_id,
            "size": records["size_bytes"],
            "value": records["value"],
        }
        yield Rows(schema.MEMSET, len(batch), cells)

    def _sync_or_async(self, records: Column, name: str) -> Cell:
        synchronous = self.strings.id_of(f"{name}_SYNC")
        asynchronous = self.strings.id_of(f"{name}_ASYNC")
        return np.where(records["is_async"] != 0, asynchronous, synchronous)

    def _memory(self, batch: Batch) -> Rows:
        records = batch.records
        cells: dict[str, Cell] = {
            "startNs": records["start_ns"],
            "endNs": records["end_ns"],
            "operation": records["operation"],
            "memoryKind": records["memory_kind"],
            "address": records["address"],
            "size": records["size_bytes"],
            "deviceId": self._devices(records["device_id"]),
            "streamId": signed_ids(records["stream_id"]),
            "processId": records["process_id"],
            "connectionId": records["correlation_id"],
        }
        return Rows(schema.MEMORY, len(batch), cells)

    def _hccl(self, batch: Batch) -> Rows:
        records = batch.records
        cells: dict[str, Cell] = {
            "startNs": records["start_ns"],
            "endNs": records["end_ns"],
            "deviceId": self._devices(records["device_id"]),
            "streamId": signed_ids(records["stream_id"]),
            "bandwidth": finite_or_null(records["bandwidth_gb_per_s"]),
            "name": self.strings.column(batch, records["name"]),
            "groupName": self.strings.column(batch, records["comm_name"]),
        }
        return Rows(schema.HCCL, len(batch), cells)

    def _external_correlation(self, batch: Batch) -> Rows:
        records = batch.records
        cells: dict[str, Cell] = {
            "externalKind": records["external_kind"],
            "externalId": records["external_id"],
            "connectionId": records["correlation_id"],
        }
        return Rows(schema.EXTERNAL_CORRELATION, len(batch), cells)

    def _task_ids(self, count: int) -> Counter:
        first = self.next_task_id
        self.next_task_id += count
        return Counter(first)

    def _devices(self, column: Column) -> Cell:
        """Return device ids, and remember which devices were seen."""
        devices = signed_ids(column)
        self.devices.update(np.unique(devices).tolist())
        return constant_or_column(devices)
