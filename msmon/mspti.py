"""The names of the ``mspti`` package: ``from msmon.mspti import KernelMonitor``."""

from __future__ import annotations

from msmon.compat.mspti.data_classes import (
    CommunicationData,
    HcclData,
    KernelData,
    MarkerData,
    MsptiObjectId,
    RangeMarkerData,
)
from msmon.compat.mspti.enums import (
    MsptiActivityFlag,
    MsptiActivityKind,
    MsptiActivitySourceKind,
    MsptiCommunicationDataType,
    MsptiResult,
)
from msmon.compat.mspti.monitors import (
    BaseMonitor,
    CommunicationMonitor,
    HcclMonitor,
    KernelMonitor,
    MstxMonitor,
)

__all__ = [
    "BaseMonitor",
    "CommunicationData",
    "CommunicationMonitor",
    "HcclData",
    "HcclMonitor",
    "KernelData",
    "KernelMonitor",
    "MarkerData",
    "MsptiActivityFlag",
    "MsptiActivityKind",
    "MsptiActivitySourceKind",
    "MsptiCommunicationDataType",
    "MsptiObjectId",
    "MsptiResult",
    "MstxMonitor",
    "RangeMarkerData",
]
