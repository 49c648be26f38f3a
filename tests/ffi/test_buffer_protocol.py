"""Native callbacks and arena against MSPTI's buffer protocol, with real native threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from msmon.ffi.arena import BufferArena
from msmon.ffi.callbacks import Callbacks, native_callbacks, python_callbacks
from msmon.ffi.walk import split
from msmon.records.kinds import ActivityKind

_KERNEL_BYTES = 56
_SLOT_BYTES = 64 << 10
_RECORDS_PER_SLOT = -(-int(0.8 * _SLOT_BYTES) // _KERNEL_BYTES)  # the 80 % rule


@pytest.fixture(params=[native_callbacks, python_callbacks], ids=["native", "python"])
def arena(request: pytest.FixtureRequest) -> BufferArena:
    callbacks_for: Callable[[int], Callbacks] = request.param
    return BufferArena(slot_count=4, slot_bytes=_SLOT_BYTES, callbacks_for=callbacks_for)


@pytest.fixture
def recording(native_double: Any, arena: BufferArena) -> Any:
    """The double, subscribed, with kernels and ACL calls enabled into the arena."""
    native_double.c.double_lose_manager(True)
    start(native_double, arena)
    return native_double


def start(double: Any, arena: BufferArena) -> int:
    handle: int = double.mspti.subscribe()
    double.mspti.register_callbacks(arena.request_address, arena.complete_address)
    for kind in (ActivityKind.Kernel, ActivityKind.AclAPI):
        double.mspti.enable(kind)
    return handle


def drain(arena: BufferArena) -> Counter[ActivityKind]:
    received: Counter[ActivityKind] = Counter()
    for buffer in arena.completed():
        for kind, records in split(arena.view(buffer)).parts.items():
            received[kind] += len(records)
        arena.release(buffer)
    return received


def test_a_flush_delivers_the_current_buffer(recording: Any, arena: BufferArena) -> None:
    recording.record(ActivityKind.Kernel, 3)
    recording.record(ActivityKind.AclAPI, 2)
    assert arena.completed() == []
    assert arena.slots_out == 1
    recording.mspti.flush_all()
    assert drain(arena) == {ActivityKind.Kernel: 3, ActivityKind.AclAPI: 2}
    assert arena.slots_out == 0


def test_without_a_delivery_thread_full_buffers_come_with_the_flush(
    recording: Any, arena: BufferArena
) -> None:
    recording.record(ActivityKind.Kernel, 2 * _RECORDS_PER_SLOT + 1)
    assert arena.completed() == []
    assert arena.slots_out == 3
    recording.mspti.flush_all()
    buffers = arena.completed()
    assert [buffer.order for buffer in buffers] == [0, 1, 2]
    assert buffers[0].valid_bytes == _RECORDS_PER_SLOT * _KERNEL_BYTES
    assert drain(arena) == {ActivityKind.Kernel: 2 * _RECORDS_PER_SLOT + 1}


def test_what_finds_no_free_slot_is_counted_and_collection_resumes(
    recording: Any, arena: BufferArena
) -> None:
    total = 6 * _RECORDS_PER_SLOT + 10
    recording.record(ActivityKind.Kernel, total)
    recording.mspti.flush_all()
    received = drain(arena)[ActivityKind.Kernel]
    assert received == 4 * _RECORDS_PER_SLOT
    assert arena.overflow_requests == 3
    assert received + arena.overflow_bytes // _KERNEL_BYTES == total
    assert recording.c.double_dropped() == 0
    recording.record(ActivityKind.Kernel, 5)
    recording.mspti.flush_all()
    assert drain(arena) == {ActivityKind.Kernel: 5}


def test_buffers_completed_out_of_order_are_read_in_the_order_they_were_asked_for(
    recording: Any, arena: BufferArena
) -> None:
    recording.c.double_hold_completions(True)
    recording.record(ActivityKind.Kernel, 2 * _RECORDS_PER_SLOT + 1)
    recording.mspti.flush_all()
    assert arena.completed() == []
    assert recording.c.double_deliver_held(True) == 3
    starts = [split(arena.view(b)).parts[ActivityKind.Kernel]["end_ns"] for b in arena.completed()]
    assert all(a[-1] <= b[0] for a, b in zip(starts, starts[1:]))


def test_a_buffer_completed_long_after_the_stop_is_told_from_the_next_session(
    native_double: Any, arena: BufferArena
) -> None:
    handle = start(native_double, arena)
    native_double.c.double_hold_completions(True)
    native_double.record(ActivityKind.Kernel, 7)
    native_double.mspti.disable(ActivityKind.Kernel)
    native_double.mspti.flush_all()
    native_double.mspti.unsubscribe(handle)
    native_double.mspti.flush_all()

    next_session = arena.requests
    start(native_double, arena)
    native_double.c.double_deliver_held(False)
    native_double.record(ActivityKind.Kernel, 2)
    native_double.mspti.flush_all()
    late, own = arena.completed()
    assert late.order < next_session <= own.order
    assert len(split(arena.view(own)).parts[ActivityKind.Kernel]) == 2


def test_a_buffer_completed_by_several_threads_at_once_is_read_once(
    recording: Any, arena: BufferArena
) -> None:
    recording.c.double_set_complete_threads(8)
    received: Counter[ActivityKind] = Counter()
    for _ in range(20):
        recording.record(ActivityKind.Kernel, 10)
        recording.mspti.flush_all()
        received += drain(arena)
    assert received == {ActivityKind.Kernel: 200}


def test_a_buffer_completed_with_nothing_in_it_comes_back(
    recording: Any, arena: BufferArena
) -> None:
    for _ in range(3 * arena.slot_count):
        recording.c.double_complete_empty()
    assert arena.completed() == []
    assert (arena.slots_out, arena.overflow_requests) == (0, 0)


def test_an_unknown_kind_ends_the_buffer_and_keeps_what_came_before(
    recording: Any, arena: BufferArena
) -> None:
    recording.record(ActivityKind.Kernel, 4)
    recording.c.double_record_unknown(99)
    recording.record(ActivityKind.Kernel, 4)
    recording.mspti.flush_all()
    (buffer,) = arena.completed()
    found = split(arena.view(buffer))
    assert len(found.parts[ActivityKind.Kernel]) == 4
    assert (found.read_bytes, found.unknown_kind) == (4 * _KERNEL_BYTES, 99)


def test_a_truncated_buffer_keeps_the_whole_records(recording: Any, arena: BufferArena) -> None:
    recording.c.double_truncate(20)
    recording.record(ActivityKind.Kernel, 4)
    recording.mspti.flush_all()
    (buffer,) = arena.completed()
    found = split(arena.view(buffer))
    assert len(found.parts[ActivityKind.Kernel]) == 3
    assert (found.read_bytes, found.unknown_kind) == (3 * _KERNEL_BYTES, None)


def test_native_threads_and_the_delivery_thread_lose_nothing_unaccounted(
    native_double: Any,
) -> None:
    arena = BufferArena(slot_count=8, slot_bytes=256 << 10)
    start(native_double, arena)
    mix = [ActivityKind.Kernel, ActivityKind.AclAPI, ActivityKind.Kernel]
    native_double.start_recording(threads=4, kinds=mix, records_each=50_000)
    native_double.join_recording()
    received: Counter[ActivityKind] = drain(arena)
    native_double.mspti.flush_all()
    received += drain(arena)
    assert native_double.emitted(*mix[:2]) == 200_000
    received_bytes = 56 * received[ActivityKind.Kernel] + 48 * received[ActivityKind.AclAPI]
    emitted_bytes = 56 * native_double.emitted(ActivityKind.Kernel)
    emitted_bytes += 48 * native_double.emitted(ActivityKind.AclAPI)
    assert received_bytes + arena.overflow_bytes == emitted_bytes
