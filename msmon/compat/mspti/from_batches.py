"""Makes the objects that ``mspti`` callbacks get from batches of records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msmon.compat.mspti.data_classes import (
    CommunicationData,
    HcclData,
    KernelData,
    MarkerData,
    MsptiObjectId,
    RangeMarkerData,
)
from msmon.compat.mspti.enums import MsptiActivitySourceKind
from msmon.records.batch import Batch, printable
from msmon.records.kinds import ActivityKind, CommunicationDataType, MarkerFlag, SourceKind
from msmon.records.layout import LAYOUTS, TEXT_FIELDS
from msmon.records.markers import MarkerEvents

_DATA_TYPES = {item.value for item in CommunicationDataType}


def kernel_data(batch: Batch) -> Iterator[KernelData]:
    """Yield the kernels of a batch."""
    return map(KernelData, _dicts(batch))


def hccl_data(batch: Batch) -> Iterator[HcclData]:
    """Yield the Hccl records of a batch."""
    return map(HcclData, _dicts(batch))


def communication_data(batch: Batch) -> Iterator[CommunicationData]:
    """Yield the communication records of a batch. An unknown data type is INVALID_TYPE."""
    for data in _dicts(batch):
        if data["dataType"] not in _DATA_TYPES:
            data["dataType"] = CommunicationDataType.INVALID_TYPE.value
        yield CommunicationData(data)


def mark_data(batch: Batch) -> Iterator[MarkerData]:
    """Yield the instantaneous markers of a batch, those of host and device."""
    marks = MarkerFlag.INSTANTANEOUS | MarkerFlag.INSTANTANEOUS_WITH_DEVICE
    for data in _dicts(batch.select((batch.records["flag"] & marks) != 0)):
        data["objectId"] = _object_id(
            data["sourceKind"], data["process_or_device_id"], data["thread_or_stream_id"]
        )
        yield MarkerData(data)


def range_data(markers: MarkerEvents) -> Iterator[RangeMarkerData]:
    """Yield the finished ranges, those of host and device."""
    columns = markers.to_numpy()
    rows = zip(*(columns[field].tolist() for field in columns))
    for row in (dict(zip(columns, values)) for values in rows):
        if row["instantaneous"]:
            continue
        on_host = row["source_kind"] == SourceKind.HOST
        data = RangeMarkerData()
        data.source_kind = MsptiActivitySourceKind(row["source_kind"])
        data.id = row["id"]
        data.object_id = MsptiObjectId(
            _object_id(row["source_kind"], row["process_id"], row["thread_id"])
            if on_host
            else _object_id(row["source_kind"], row["device_id"], row["stream_id"])
        )
        data.name, data.domain = printable(row["name"]), printable(row["domain"])
        data.start, data.end = row["start_ns"], row["end_ns"]
        yield data


def _dicts(batch: Batch) -> Iterator[dict[str, Any]]:
    columns = batch.to_numpy()
    keys = [_key(batch.kind, field) for field in columns]
    texts = {_key(batch.kind, field) for field in TEXT_FIELDS[batch.kind]}
    for values in zip(*(column.tolist() for column in columns.values())):
        data = dict(zip(keys, values))
        for key in texts:
            data[key] = printable(data[key])
        yield data


def _key(kind: ActivityKind, field: str) -> str:
    """Return the key of a field in the dicts of the package.

    It is the key of the JSON lines without the unit of times: "start" for "startNs".
    """
    key = LAYOUTS[kind][field].json_key if field in LAYOUTS[kind] else field
    return key[:-2] if key.endswith("Ns") else key or field


def _object_id(source_kind: int, first: int, second: int) -> dict[str, int]:
    if source_kind == SourceKind.DEVICE:
        return {"processId": -1, "threadId": -1, "deviceId": first, "streamId": second}
    return {"processId": first, "threadId": second, "deviceId": -1, "streamId": -1}
