"""Every field of every dtype against bytes written by a C compiler."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from msmon.ffi.walk import split
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.layout import TEXT_FIELDS

_SIZES = {1: 56, 2: 56, 3: 48, 4: 56, 5: 64, 6: 56, 7: 56, 8: 24, 9: 72, 10: 48, 11: 48, 12: 48}


@pytest.fixture
def golden(native_double: Any) -> np.ndarray[Any, Any]:
    """Two records of each kind back to back (tests/native/golden.c)."""
    memory = ctypes.create_string_buffer(4096)
    native_double.c.double_golden.restype = ctypes.c_size_t
    length = native_double.c.double_golden(memory)
    return np.frombuffer(memory, np.uint8)[:length]


def test_sizes_are_those_of_the_structs(golden: np.ndarray[Any, Any]) -> None:
    assert {int(kind): dtype.itemsize for kind, dtype in DTYPES.items()} == _SIZES
    assert len(golden) == 2 * sum(_SIZES.values())


@pytest.mark.parametrize("kind", list(ActivityKind))
def test_every_field_is_where_c_puts_it(golden: np.ndarray[Any, Any], kind: ActivityKind) -> None:
    records = split(golden).parts[kind]
    assert len(records) == 2
    for copy, record in enumerate(records):
        value = 1000 * (2 * (kind - 1) + copy + 1)
        expected: dict[str, float] = {
            field: value + place for place, field in enumerate(DTYPES[kind].names or ())
        }
        expected["kind"] = kind
        if "is_async" in expected:
            expected["is_async"] = copy
        if "bandwidth_gb_per_s" in expected:
            expected["bandwidth_gb_per_s"] /= 2
        assert {field: record[field].item() for field in expected} == expected


@pytest.mark.parametrize("kind", list(ActivityKind))
def test_text_fields_are_pointers_and_exist(kind: ActivityKind) -> None:
    for field in TEXT_FIELDS[kind]:
        assert DTYPES[kind][field].itemsize == ctypes.sizeof(ctypes.c_char_p)
