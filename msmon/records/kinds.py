"""Activity kinds and the small enumerations found inside activity records.

Numbers are those of ``mspti_activity.h``; member names of :class:`ActivityKind`
are the ones that users type after ``--kind`` and in filters.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from msmon.errors import UsageError


class ActivityKind(enum.IntEnum):
    """``msptiActivityKind`` (mspti_activity.h), without INVALID and COUNT."""

    Marker = 1
    Kernel = 2
    API = 3
    Hccl = 4
    Memory = 5
    MemSet = 6
    MemCpy = 7
    ExternalCorrelation = 8
    Communication = 9
    AclAPI = 10
    NodeAPI = 11
    RuntimeAPI = 12

    def __str__(self) -> str:
        return f"ActivityKind.{self.name}"


class MarkerFlag(enum.IntFlag):
    """``msptiActivityFlag``: what a marker record stands for."""

    INSTANTANEOUS = 1
    START = 2
    END = 4
    INSTANTANEOUS_WITH_DEVICE = 8
    START_WITH_DEVICE = 16
    END_WITH_DEVICE = 32


class SourceKind(enum.IntEnum):
    """``msptiActivitySourceKind``: who recorded a marker."""

    HOST = 0
    DEVICE = 1


class MemoryOperation(enum.IntEnum):
    """``msptiActivityMemoryOperationType``."""

    ALLOCATION = 0
    RELEASE = 1


class MemoryKind(enum.IntEnum):
    """``msptiActivityMemoryKind``."""

    UNKNOWN = 0
    DEVICE = 1


class MemcpyKind(enum.IntEnum):
    """``msptiActivityMemcpyKind``: direction of a copy."""

    UNKNOWN = 0
    HTOH = 1
    HTOD = 2
    DTOH = 3
    DTOD = 4
    DEFAULT = 5


class CommunicationDataType(enum.IntEnum):
    """``msptiCommunicationDataType``. 13 is not assigned; 18 to 255 may appear in records."""

    INT8 = 0
    INT16 = 1
    INT32 = 2
    FP16 = 3
    FP32 = 4
    INT64 = 5
    UINT64 = 6
    UINT8 = 7
    UINT16 = 8
    UINT32 = 9
    FP64 = 10
    BFP16 = 11
    INT128 = 12
    HIF8 = 14
    FP8E4M3 = 15
    FP8E5M2 = 16
    FP8E8M0 = 17
    INVALID_TYPE = 0xFFFF


INVALID_ID = 0xFFFFFFFF
"""``MSPTI_INVALID_DEVICE_ID`` and ``MSPTI_INVALID_STREAM_ID``."""

HOST_DEVICE_ID = -1
"""Device id used wherever a record belongs to the host and not to a device."""


def kind_named(name: str) -> ActivityKind:
    """Return the kind with this exact name.

    Raises UsageError for an unknown name; the message lists the known ones.
    """
    try:
        return ActivityKind[name]
    except KeyError:
        known = ", ".join(kind.name for kind in ActivityKind)
        raise UsageError(f"unknown activity kind {name!r}", f"known kinds: {known}") from None


def parse_kinds(text: str) -> frozenset[ActivityKind]:
    """Parse a comma list of kind names ("Kernel, API"); blanks around names are ignored.

    Raises UsageError for an empty list, an empty item or an unknown name.
    """
    names = [item.strip() for item in text.split(",")]
    if not all(names):
        raise UsageError(f"empty item in kind list {text!r}", "write for example Kernel,API")
    return frozenset(kind_named(name) for name in names)


def format_kinds(kinds: Iterable[ActivityKind]) -> str:
    """Return the comma list that :func:`parse_kinds` reads, in numeric order."""
    return ",".join(kind.name for kind in sorted(kinds))
