"""What a collective is, whoever records it: its operation, its group and its size.

CANN numbers the names of collectives: ``hcom_allReduce__101_17_1`` is the 17th of group 101. So
names would tell each call apart. What can be compared is the operation (allReduce) within the
communicator, for about the same number of bytes.
"""

from __future__ import annotations

import numpy as np

from msmon.records.batch import Batch, Column
from msmon.records.kinds import ActivityKind, CommunicationDataType
from msmon.records.layout import LAYOUTS

POINT_TO_POINT = frozenset({"send", "receive", "recv", "batchsendrecv"})
"""Operations between two ranks, in lower case. The others are collectives of a whole group."""

COLLECTIVE_KINDS = frozenset({ActivityKind.Communication, ActivityKind.Hccl})

_WIDTHS = {
    1: (CommunicationDataType.INT8, CommunicationDataType.UINT8),
    2: (
        CommunicationDataType.INT16, CommunicationDataType.FP16,
        CommunicationDataType.UINT16, CommunicationDataType.BFP16,
    ),
    4: (CommunicationDataType.INT32, CommunicationDataType.FP32, CommunicationDataType.UINT32),
    8: (CommunicationDataType.INT64, CommunicationDataType.UINT64, CommunicationDataType.FP64),
}  # fmt: skip
_UNKNOWN_TYPE = 255
_LOG_WIDTH_OF_TYPE = np.full(256, -1, np.int64)
"""log2 of the bytes of a value by the number of its type; -1 where it is unknown."""
for _width, _types in _WIDTHS.items():
    _LOG_WIDTH_OF_TYPE[list(_types)] = _width.bit_length() - 1

_SIZE_CLASSES = 128
"""Beyond every size class: a count of 64 bits times 8 bytes has 67 bits."""


def operation_of(name: str) -> str:
    """Return "allReduce" for "hcom_allReduce__101_17_1"."""
    operation = name.partition("__")[0].rstrip("_0123456789")
    return operation.replace("hcom_", "", 1) or name


def is_point_to_point(operation: str) -> bool:
    """Whether an operation is between two ranks."""
    return operation.lower() in POINT_TO_POINT


def size_text(size_class: int) -> str:
    """Return "4 MiB" for the size class 22: so many bytes, or up to twice as many."""
    unit = min(size_class // 10, 4)
    return f"{1 << (size_class - 10 * unit)} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def labels_of_collectives(batch: Batch) -> tuple[Column, list[tuple[str, str, int]]]:
    """Return (label of each record, labels) of a batch of a kind of ``COLLECTIVE_KINDS``.

    A label is (operation, group, size class). The labels of the records have shape (n,), int64.
    """
    records, texts = batch.records, len(batch.strings)
    keys = records["name"].astype(np.int64) * texts + records["comm_name"].astype(np.int64)
    keys = keys * _SIZE_CLASSES + _size_classes(batch)  # one number sorts faster than three
    distinct, place = np.unique(keys, return_inverse=True)
    numbers: dict[tuple[str, str, int], int] = {}
    ids = []
    for key in distinct.tolist():
        pair, size_class = divmod(key, _SIZE_CLASSES)
        name, group = divmod(pair, texts)
        text = batch.strings[name]
        label = operation_of(text), batch.strings[group] or group_in(text), size_class
        ids.append(numbers.setdefault(label, len(numbers)))
    return np.array(ids, np.int64)[place.reshape(-1)], list(numbers)


def group_in(name: str) -> str:
    """Return "101" for "hcom_allReduce__101_17_1": what names the group when nothing else does."""
    return name.partition("__")[2].partition("_")[0]


def _size_classes(batch: Batch) -> Column:
    """Return floor(log2(bytes)) of each collective (int64), 0 where they are unknown."""
    records = batch.records
    if "count" not in LAYOUTS[batch.kind]:
        return np.zeros(len(records), np.int64)
    widths = _LOG_WIDTH_OF_TYPE.take(np.minimum(records["data_type"], _UNKNOWN_TYPE))
    exponents = (records["count"].astype(np.float64).view(np.int64) >> 52) - 1023  # of a float64
    classes: Column = np.where((widths >= 0) & (exponents >= 0), exponents + widths, 0)
    return classes
