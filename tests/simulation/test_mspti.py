"""The fifteen functions: result codes and the rules between them, through C pointers."""

from __future__ import annotations

import ctypes

import pytest

from msmon.errors import MsptiError, UsageError
from msmon.ffi.prototypes import FUNCTIONS
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.layout import PRELOAD_KINDS
from msmon.simulation import load_simulated


def refused(result: int):
    """Expect an MsptiError with this result code."""
    return pytest.raises(MsptiError, match=rf"\({result}\)")


def call(simulation, name: str, *arguments):
    """Call a function with C arguments that the Python interface would not pass."""
    (function,) = (item for item in FUNCTIONS if item.name == name)
    pointer = ctypes.CFUNCTYPE(function.restype, *function.argtypes)(simulation.addresses[name])
    return pointer(*arguments)


def test_every_function_has_an_address(simulate) -> None:
    simulation, _ = simulate()
    assert set(simulation.addresses) == {function.name for function in FUNCTIONS}
    assert len(set(simulation.addresses.values())) == len(FUNCTIONS)
    assert all(simulation.addresses.values())


def test_one_subscriber_at_a_time(simulate) -> None:
    _, mspti = simulate()
    handle = mspti.subscribe()
    with refused(2):
        mspti.subscribe()
    with refused(1):
        mspti.unsubscribe(handle + 8)
    mspti.unsubscribe(handle)
    mspti.unsubscribe(handle)  # nobody is subscribed: success, as in the real library
    mspti.unsubscribe(mspti.subscribe())


@pytest.mark.parametrize("kind", [0, 13, 0x7FFFFFFF])
def test_unknown_kind_is_an_invalid_parameter(simulate, kind: int) -> None:
    simulation, _ = simulate("preload=1")
    assert call(simulation, "msptiActivityEnable", kind) == 1
    assert call(simulation, "msptiActivityDisable", kind) == 1


def test_some_kinds_need_preload(simulate) -> None:
    _, mspti = simulate()
    for kind in ActivityKind:
        if kind in PRELOAD_KINDS:
            with refused(6):
                mspti.enable(kind)
        else:
            mspti.enable(kind)
        assert mspti.is_enabled(kind) == (kind not in PRELOAD_KINDS)


@pytest.mark.parametrize(
    ("text", "ld_preload"), [("preload=1", ""), ("1", "/opt/ascend/lib64/libmspti.so:other.so")]
)
def test_preloaded_library_has_every_kind(simulate, text: str, ld_preload: str) -> None:
    _, mspti = simulate(text, ld_preload=ld_preload)
    for kind in ActivityKind:
        mspti.enable(kind)
        assert mspti.is_enabled(kind)
        mspti.disable(kind)
        assert not mspti.is_enabled(kind)


def test_kinds_stay_marked_enabled_after_unsubscribe(simulate) -> None:
    _, mspti = simulate()
    handle = mspti.subscribe()
    mspti.enable(ActivityKind.Kernel)
    mspti.unsubscribe(handle)
    assert mspti.is_enabled(ActivityKind.Kernel)


def test_null_arguments_are_invalid_parameters(simulate) -> None:
    simulation, _ = simulate()
    callback = simulation.addresses["msptiActivityFlushAll"]
    assert call(simulation, "msptiActivityRegisterCallbacks", None, callback) == 1
    assert call(simulation, "msptiActivityRegisterCallbacks", callback, None) == 1
    assert call(simulation, "msptiSubscribe", None, None, None) == 1
    assert call(simulation, "msptiActivityEnableMarkerDomain", None) == 1
    assert call(simulation, "msptiActivityPopExternalCorrelationId", 2, None) == 1
    assert call(simulation, "msptiActivityGetNextRecord", None, 8, None) == 1


def test_domain_names_are_shorter_than_255_bytes(simulate) -> None:
    _, mspti = simulate()
    mspti.disable_marker_domain("x" * 254)
    with refused(1):
        mspti.disable_marker_domain("x" * 255)
    with refused(1):
        mspti.enable_marker_domain("x" * 255)


def test_external_ids_are_a_stack_per_kind(simulate) -> None:
    _, mspti = simulate()
    mspti.push_external_correlation_id(2, 10)
    mspti.push_external_correlation_id(2, 11)
    mspti.push_external_correlation_id(3, 30)
    assert [mspti.pop_external_correlation_id(kind) for kind in (2, 3, 2)] == [11, 30, 10]
    with refused(5):
        mspti.pop_external_correlation_id(2)


def test_callback_functions_check_preload_handle_and_range(simulate) -> None:
    _, without = simulate()
    with refused(6):
        without.enable_domain(True, without.subscribe(), 1)
    _, mspti = simulate("preload=1")
    handle = mspti.subscribe()
    mspti.enable_domain(True, handle, 1)
    mspti.enable_callback(True, handle, 2, 12)
    for domain, callback_id in ((0, 1), (3, 1), (1, 64)):
        with refused(1):
            mspti.enable_callback(True, handle, domain, callback_id)
    with refused(1):
        mspti.enable_domain(True, handle + 8, 1)


def buffer_of(*kinds: int) -> ctypes.Array[ctypes.c_char]:
    """Return a buffer with one zeroed record of each kind."""
    data = b"".join(
        kind.to_bytes(4, "little") + bytes(DTYPES[ActivityKind(kind)].itemsize - 4)
        for kind in kinds
    )
    return ctypes.create_string_buffer(data, len(data))


def test_get_next_record_walks_to_the_end_and_starts_again(simulate) -> None:
    _, mspti = simulate()
    buffer = buffer_of(2, 9, 1)
    address = ctypes.addressof(buffer)
    for _ in range(2):
        walked = [mspti.get_next_record(address, len(buffer)) for _ in range(4)]
        assert walked == [address, address + 56, address + 128, None]


def test_get_next_record_stays_at_an_unknown_kind(simulate) -> None:
    _, mspti = simulate()
    unknown = ctypes.create_string_buffer(b"\x0d", 56)
    for _ in range(2):
        with refused(999):
            mspti.get_next_record(ctypes.addressof(unknown), len(unknown))


def test_half_read_buffer_spoils_the_next_one(simulate) -> None:
    _, mspti = simulate()
    first, second = buffer_of(2, 2), buffer_of(2, 2)
    mspti.get_next_record(ctypes.addressof(first), len(first))
    address = ctypes.addressof(second)
    assert mspti.get_next_record(address, len(second)) == address + 56


def test_load_simulated_reads_the_environment() -> None:
    assert load_simulated({"MSMON_SIMULATE": "seed=1", "RANK": "1"}).origin == "simulated"
    with pytest.raises(UsageError, match="speed"):
        load_simulated({"MSMON_SIMULATE": "speed=1"})
    with pytest.raises(UsageError, match="ledger"):
        load_simulated({"MSMON_SIMULATE": "ledger=/nowhere/truth.json"})
    with pytest.raises(UsageError, match="RANK"):
        load_simulated({"MSMON_SIMULATE": "1", "RANK": "x"})
