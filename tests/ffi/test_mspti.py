"""MSPTI's functions as methods, against the C library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from msmon.errors import LibraryUnavailable, MsptiError
from msmon.ffi.arena import BufferArena
from msmon.ffi.codes import PRELOAD_LINE
from msmon.ffi.mspti import Mspti
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.layout import PRELOAD_KINDS


def test_there_is_one_subscription(native_double: Any) -> None:
    mspti: Mspti = native_double.mspti
    handle = mspti.subscribe()
    assert handle
    with pytest.raises(MsptiError) as raised:
        mspti.subscribe()
    assert raised.value.result == 2
    with pytest.raises(MsptiError) as raised:
        mspti.unsubscribe(handle + 8)
    assert "not ours" in raised.value.next_step
    mspti.unsubscribe(handle)
    assert mspti.subscribe() == handle


def test_kinds_are_switched_one_by_one(native_double: Any) -> None:
    mspti: Mspti = native_double.mspti
    assert not mspti.is_enabled(ActivityKind.Kernel)
    mspti.enable(ActivityKind.Kernel)
    assert mspti.is_enabled(ActivityKind.Kernel)
    assert not mspti.is_enabled(ActivityKind.API)
    mspti.disable(ActivityKind.Kernel)
    assert not mspti.is_enabled(ActivityKind.Kernel)


@pytest.mark.parametrize("kind", sorted(PRELOAD_KINDS))
def test_a_kind_that_needs_preloading_says_how(native_double: Any, kind: ActivityKind) -> None:
    with pytest.raises(MsptiError) as raised:
        native_double.mspti.enable(kind)
    assert raised.value.result_name == "MSPTI_ERROR_WITHOUT_LD_PRELOAD"
    assert PRELOAD_LINE in str(raised.value)


def test_a_number_that_is_no_kind_never_reaches_the_array_of_mspti(native_double: Any) -> None:
    with pytest.raises(ValueError, match="13"):
        native_double.mspti.is_enabled(13)


def test_a_refused_kind_does_not_stop_the_others(native_double: Any) -> None:
    native_double.c.double_refuse_kind(ActivityKind.Kernel, 999)
    with pytest.raises(MsptiError, match="MSPTI_ERROR_INNER"):
        native_double.mspti.enable(ActivityKind.Kernel)
    native_double.mspti.enable(ActivityKind.API)


def test_a_disabled_domain_records_no_markers(native_double: Any) -> None:
    mspti: Mspti = native_double.mspti
    arena = BufferArena(slot_count=2, slot_bytes=64 << 10)
    mspti.subscribe()
    mspti.register_callbacks(arena.request_address, arena.complete_address)
    mspti.enable(ActivityKind.Marker)
    mspti.disable_marker_domain("communication")

    def mark(domain: bytes) -> None:
        native_double.c.double_record_marker(b"name", domain, 1, 1, 1)

    mark(b"communication")
    mark(b"default")
    mspti.enable_marker_domain("communication")
    mark(b"communication")
    assert native_double.emitted(ActivityKind.Marker) == 2


@pytest.mark.parametrize("method", ["enable_marker_domain", "disable_marker_domain"])
def test_a_domain_name_that_is_too_long_is_refused(native_double: Any, method: str) -> None:
    with pytest.raises(MsptiError, match="shorter than 255 bytes"):
        getattr(native_double.mspti, method)("d" * 255)


def test_external_correlation_ids_are_a_stack(native_double: Any) -> None:
    mspti: Mspti = native_double.mspti
    mspti.push_external_correlation_id(2, 1 << 40)
    mspti.push_external_correlation_id(2, 7)
    assert mspti.pop_external_correlation_id(2) == 7
    assert mspti.pop_external_correlation_id(2) == 1 << 40
    with pytest.raises(MsptiError, match="MSPTI_ERROR_QUEUE_EMPTY"):
        mspti.pop_external_correlation_id(2)


def test_records_can_be_read_one_by_one(native_double: Any) -> None:
    records = np.zeros(3, DTYPES[ActivityKind.Kernel])
    records["kind"] = ActivityKind.Kernel
    address = records.ctypes.data
    for _ in range(2):  # the end forgets the position
        found = [native_double.mspti.get_next_record(address, records.nbytes) for _ in range(4)]
        assert found == [address, address + 56, address + 112, None]


def test_flush_period_is_handed_on(native_double: Any) -> None:
    native_double.mspti.flush_period(250)
    assert native_double.c.double_flush_period_ms() == 250


def test_callbacks_need_preloading_too(native_double: Any) -> None:
    handle = native_double.mspti.subscribe()
    with pytest.raises(MsptiError, match="WITHOUT_LD_PRELOAD"):
        native_double.mspti.enable_callback(True, handle, 1, 10)
    with pytest.raises(MsptiError, match="WITHOUT_LD_PRELOAD"):
        native_double.mspti.enable_domain(True, handle, 1)


def test_callbacks_must_not_be_null(native_double: Any) -> None:
    with pytest.raises(MsptiError, match="MSPTI_ERROR_INVALID_PARAMETER"):
        native_double.mspti.register_callbacks(0, 0)


def test_a_function_that_a_library_lacks_is_missed_only_when_it_is_called() -> None:
    mspti = Mspti({"msptiActivityFlushAll": 0}, "old libmspti.so")
    with pytest.raises(LibraryUnavailable, match=r"old libmspti.so has no function msptiActivityF"):
        mspti.flush_all()
