"""Result codes: names, and a next step for each that a caller can see."""

from __future__ import annotations

import pytest

from msmon.ffi.codes import PRELOAD_LINE, Result, next_step, result_name


@pytest.mark.parametrize("code", [1, 2, 3, 5, 6, 999])
def test_every_code_that_reaches_a_caller_has_a_next_step(code: int) -> None:
    assert result_name(code) == Result(code).name
    assert next_step("msptiActivityEnable", code)


def test_a_kind_that_needs_preloading_names_the_line_to_set() -> None:
    assert PRELOAD_LINE == "export LD_PRELOAD=$ASCEND_HOME_PATH/lib64/libmspti.so"
    assert PRELOAD_LINE in next_step("msptiActivityEnable", 6)


def test_a_second_subscriber_is_told_to_stop_the_other_profiler() -> None:
    step = next_step("msptiSubscribe", 2)
    assert "does not say which" in step
    assert "stop the other one" in step


def test_the_same_code_means_something_else_for_another_function() -> None:
    assert "255 bytes" in next_step("msptiActivityDisableMarkerDomain", 1)
    assert "255 bytes" not in next_step("msptiActivityEnable", 1)


def test_a_code_of_a_newer_version_is_not_an_accident() -> None:
    assert result_name(77) == "unknown result"
    assert "mspti_result.h" in next_step("msptiSubscribe", 77)
