"""The objects that callbacks of the ``mspti`` package get.

Each is made from a dict, as in that package; the class constants are its keys. Times are in ns.
A missing number is 0, a missing text is "".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msmon.compat.mspti.enums import (
    MsptiActivityFlag,
    MsptiActivityKind,
    MsptiActivitySourceKind,
    MsptiCommunicationDataType,
)

Data = Mapping[str, Any]


class MsptiObjectId:
    """Where a marker was set: process and thread on the host, or device and stream.

    The two numbers that don't apply are -1.
    """

    PROCESS_ID = "processId"
    THREAD_ID = "threadId"
    DEVICE_ID = "deviceId"
    STREAM_ID = "streamId"

    def __init__(self, data: Data) -> None:
        self.process_id = int(data.get(self.PROCESS_ID, -1))
        self.thread_id = int(data.get(self.THREAD_ID, -1))
        self.device_id = int(data.get(self.DEVICE_ID, 0))
        self.stream_id = int(data.get(self.STREAM_ID, 0))


class KernelData:
    """One execution of a kernel."""

    KIND = "kind"
    START = "start"
    END = "end"
    DEVICE_ID = "deviceId"
    STREAM_ID = "streamId"
    CORRELATION_ID = "correlationId"
    TYPE = "type"
    NAME = "name"

    def __init__(self, data: Data) -> None:
        self.kind = MsptiActivityKind(data.get(self.KIND, 0))
        self.start = int(data.get(self.START, 0))
        self.end = int(data.get(self.END, 0))
        self.device_id = int(data.get(self.DEVICE_ID, 0))
        self.stream_id = int(data.get(self.STREAM_ID, 0))
        self.correlation_id = int(data.get(self.CORRELATION_ID, 0))
        self.type = data.get(self.TYPE, "")
        self.name = data.get(self.NAME, "")


class HcclData:
    """A collective, as the kind Hccl reports it. ``bandwidth`` is in GB/s."""

    KIND = "kind"
    START = "start"
    END = "end"
    DEVICE_ID = "deviceId"
    STREAM_ID = "streamId"
    BANDWIDTH = "bandWidth"
    NAME = "name"
    COMM_NAME = "commName"

    def __init__(self, data: Data) -> None:
        self.kind = MsptiActivityKind(data.get(self.KIND, 0))
        self.start = int(data.get(self.START, 0))
        self.end = int(data.get(self.END, 0))
        self.device_id = int(data.get(self.DEVICE_ID, 0))
        self.stream_id = int(data.get(self.STREAM_ID, 0))
        self.bandwidth = float(data.get(self.BANDWIDTH, 0.0))
        self.name = data.get(self.NAME, "")
        self.comm_name = data.get(self.COMM_NAME, "")


class CommunicationData:
    """A collective, as the kind Communication reports it."""

    KIND = "kind"
    DATA_TYPE = "dataType"
    COUNT = "count"
    DEVICE_ID = "deviceId"
    STREAM_ID = "streamId"
    START = "start"
    END = "end"
    ALG_TYPE = "algType"
    NAME = "name"
    COMM_NAME = "commName"
    CORRELATION_ID = "correlationId"

    def __init__(self, data: Data) -> None:
        self.kind = MsptiActivityKind(data.get(self.KIND, 0))
        self.data_type = MsptiCommunicationDataType(data.get(self.DATA_TYPE, 0))
        self.count = int(data.get(self.COUNT, 0))
        self.device_id = int(data.get(self.DEVICE_ID, 0))
        self.stream_id = int(data.get(self.STREAM_ID, 0))
        self.start = int(data.get(self.START, 0))
        self.end = int(data.get(self.END, 0))
        self.alg_type = data.get(self.ALG_TYPE, "")
        self.name = data.get(self.NAME, "")
        self.comm_name = data.get(self.COMM_NAME, "")
        self.correlation_id = int(data.get(self.CORRELATION_ID, 0))


class MarkerData:
    """An instantaneous marker record."""

    KIND = "kind"
    FLAG = "flag"
    SOURCE_KIND = "sourceKind"
    TIMESTAMP = "timestamp"
    ID = "id"
    OBJECT_ID = "objectId"
    NAME = "name"
    DOMAIN = "domain"

    def __init__(self, data: Data) -> None:
        self.kind = MsptiActivityKind(data.get(self.KIND, 0))
        self.flag = MsptiActivityFlag(data.get(self.FLAG, 1))
        self.source_kind = MsptiActivitySourceKind(data.get(self.SOURCE_KIND, 0))
        self.timestamp = int(data.get(self.TIMESTAMP, 0))
        self.id = int(data.get(self.ID, 0))
        self.object_id = MsptiObjectId(data.get(self.OBJECT_ID, {}))
        self.name = data.get(self.NAME, "")
        self.domain = data.get(self.DOMAIN, "")


class RangeMarkerData:
    """A finished range. ``range_data`` sets the attributes."""

    def __init__(self) -> None:
        self.kind = MsptiActivityKind.MSPTI_ACTIVITY_KIND_MARKER
        self.source_kind = MsptiActivitySourceKind.MSPTI_ACTIVITY_SOURCE_KIND_HOST
        self.id = 0
        self.object_id = MsptiObjectId({})
        self.name = ""
        self.domain = ""
        self.start = 0
        self.end = 0
