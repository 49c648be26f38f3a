"""The table of MSPTI's functions, held against the library and against the rules of calling it."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from msmon.errors import MsptiError
from msmon.ffi import prototypes
from msmon.ffi.prototypes import FUNCTIONS, must_succeed, success_or_end

_EXPORTED = {
    "msptiActivityDisable",
    "msptiActivityDisableMarkerDomain",
    "msptiActivityEnable",
    "msptiActivityEnableMarkerDomain",
    "msptiActivityFlushAll",
    "msptiActivityFlushPeriod",
    "msptiActivityGetNextRecord",
    "msptiActivityIsEnabled",
    "msptiActivityPopExternalCorrelationId",
    "msptiActivityPushExternalCorrelationId",
    "msptiActivityRegisterCallbacks",
    "msptiEnableCallback",
    "msptiEnableDomain",
    "msptiSubscribe",
    "msptiUnsubscribe",
}


def test_every_exported_function_is_listed_once(native_double: Any) -> None:
    names = [function.name for function in FUNCTIONS]
    assert sorted(names) == sorted(_EXPORTED)
    assert all(native_double.c[name] for name in names)


def test_both_tables_list_the_same_functions_in_the_same_order() -> None:
    assert list(prototypes.SIGNATURES) == list(prototypes.CHECKERS)


def test_every_result_code_is_checked() -> None:
    unchecked = {function.name for function in FUNCTIONS if function.check is None}
    assert unchecked == {"msptiActivityIsEnabled"}  # returns bool
    by_result = {function.restype for function in FUNCTIONS if function.check}
    assert by_result == {prototypes.ENUM}


def test_the_gil_is_released_while_mspti_runs() -> None:
    keeps_gil = ctypes.PYFUNCTYPE(None)._flags_ & ~ctypes.CFUNCTYPE(None)._flags_
    for function in FUNCTIONS:
        bound: Any = function.bind(1)
        assert not type(bound)._flags_ & keeps_gil


def test_values_have_the_sizes_of_the_c_types() -> None:
    assert ctypes.sizeof(prototypes.ENUM) == 4
    assert ctypes.sizeof(ctypes.c_bool) == 1


def test_success_passes_and_anything_else_is_an_error_with_function_and_name() -> None:
    assert must_succeed("msptiSubscribe", 0) is None
    with pytest.raises(MsptiError) as raised:
        must_succeed("msptiSubscribe", 2)
    assert raised.value.function == "msptiSubscribe"
    assert raised.value.result == 2
    assert raised.value.result_name == "MSPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"


def test_the_end_of_a_buffer_is_not_an_error() -> None:
    assert success_or_end("msptiActivityGetNextRecord", 0) is True
    assert success_or_end("msptiActivityGetNextRecord", 3) is False
    with pytest.raises(MsptiError, match=r"MSPTI_ERROR_INNER \(999\)"):
        success_or_end("msptiActivityGetNextRecord", 999)
