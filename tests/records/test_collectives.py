"""What a collective is called."""

from __future__ import annotations

import numpy as np
import pytest

from msmon.records.batch import Batch
from msmon.records.collectives import labels_of_collectives, operation_of
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind, CommunicationDataType


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("hcom_allReduce__101_17_1", "allReduce"),
        ("hcom_allReduce__101_0_1_681_13000003_1", "allReduce"),
        ("hcom_reduceScatter__dp_0_3_1", "reduceScatter"),
        ("hcom_send_1_2", "send"),
        ("HcclAllReduce", "HcclAllReduce"),
        ("42", "42"),
    ],
)
def test_calls_of_one_operation_have_one_name(name, operation):
    assert operation_of(name) == operation


TYPES = CommunicationDataType


def test_a_label_is_the_operation_the_communicator_and_the_size() -> None:
    strings = ("", "hcom_allReduce__101_17_1", "hcom_allReduce__101_18_1", "tp_0", "hcom_send__7_1")
    rows = [
        (1, 3, 1 << 20, TYPES.FP16),
        (2, 3, (2 << 20) - 1, TYPES.BFP16),
        (1, 3, 1 << 20, TYPES.FP32),
        (4, 0, 1000, TYPES.INT8),
        (1, 3, 0, TYPES.FP16),
        (2, 3, 77, 200),
        (1, 3, 77, 0xFFFFFFFF),
    ]
    records = np.zeros(len(rows), DTYPES[ActivityKind.Communication])
    for field, column in zip(("name", "comm_name", "count", "data_type"), zip(*rows)):
        records[field] = column
    labels, names = labels_of_collectives(Batch(ActivityKind.Communication, records, strings))
    assert [names[label] for label in labels.tolist()] == [
        ("allReduce", "tp_0", 21),
        ("allReduce", "tp_0", 21),
        ("allReduce", "tp_0", 22),
        ("send", "7", 9),
        ("allReduce", "tp_0", 0),
        ("allReduce", "tp_0", 0),
        ("allReduce", "tp_0", 0),
    ]
    assert len(set(names)) == len(names) == 4


def test_the_size_of_a_collective_that_hccl_reports_is_unknown() -> None:
    records = np.zeros(1, DTYPES[ActivityKind.Hccl])
    records["name"], records["comm_name"] = 1, 2
    batch = Batch(ActivityKind.Hccl, records, ("", "HcclAllReduce", "dp"))
    assert labels_of_collectives(batch)[1] == [("HcclAllReduce", "dp", 0)]
