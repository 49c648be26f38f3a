"""What a collective is called."""

from __future__ import annotations

import pytest

from msmon.records.collectives import operation_of


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
