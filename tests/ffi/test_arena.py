"""The buffer arena: slots, counters, memory, fork."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from msmon.errors import NativeCodeUnavailable
from msmon.ffi import callbacks, prototypes
from msmon.ffi.arena import BufferArena, CompletedBuffer, process_arena
from msmon.ffi.callbacks import native_callbacks, python_callbacks

_SLOT_BYTES = 1 << 20


class Lender:
    """Calls an arena's two callbacks as MSPTI does."""

    def __init__(self, arena: BufferArena) -> None:
        self.arena = arena
        self._request: Any = prototypes.BUFFER_REQUEST(arena.request_address)
        self._complete: Any = prototypes.BUFFER_COMPLETE(arena.complete_address)

    def request(self) -> int:
        buffer, size, limit = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(10)
        self._request(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(limit))
        assert (size.value, limit.value) == (self.arena.slot_bytes, 0)
        assert buffer.value
        return buffer.value

    def complete(self, address: int | None, valid_bytes: int) -> None:
        self._complete(address, self.arena.slot_bytes, valid_bytes)


@pytest.fixture(params=[native_callbacks, python_callbacks], ids=["native", "python"])
def lender(request: pytest.FixtureRequest) -> Lender:
    return Lender(BufferArena(3, _SLOT_BYTES, callbacks_for=request.param))


def test_slots_are_lent_once_each_then_overflow_is_shared(lender: Lender) -> None:
    addresses = [lender.request() for _ in range(5)]
    assert len(set(addresses[:3])) == 3
    assert addresses[3] == addresses[4]
    assert addresses[3] not in addresses[:3]
    arena = lender.arena
    assert (arena.slots_out, arena.overflow_requests, arena.requests) == (3, 2, 5)
    lender.complete(addresses[3], 560)
    lender.complete(addresses[4], 56)
    assert arena.overflow_bytes == 616
    assert arena.completed() == []


def test_a_completed_slot_is_free_after_release(lender: Lender) -> None:
    addresses = [lender.request() for _ in range(3)]
    lender.complete(addresses[1], 112)
    (buffer,) = lender.arena.completed()
    assert buffer == CompletedBuffer(1, addresses[1], 112, order=1)
    assert lender.request() not in addresses  # overflow: not free before it is released
    lender.arena.release(buffer)
    assert lender.arena.completed() == []
    assert lender.request() == addresses[1]


def test_completed_buffers_come_in_the_order_of_their_requests(lender: Lender) -> None:
    first, second = lender.request(), lender.request()
    lender.complete(first, 0)
    again = lender.request()
    assert again == first
    lender.complete(again, 8)
    lender.complete(second, 8)
    assert [buffer.address for buffer in lender.arena.completed()] == [second, again]


def test_buffers_of_others_and_second_completions_change_nothing(lender: Lender) -> None:
    address = lender.request()
    last = address + 4 * _SLOT_BYTES
    for foreign in (None, 4096, last, address - 1, (1 << 64) - 8):
        lender.complete(foreign, 56)
    assert lender.arena.completed() == []
    lender.complete(address, 56)
    lender.complete(address, 112)
    (buffer,) = lender.arena.completed()
    assert buffer.valid_bytes == 56
    lender.arena.release(buffer)
    lender.complete(address, 56)
    assert lender.arena.completed() == []


def test_more_valid_bytes_than_a_slot_holds_are_not_believed(lender: Lender) -> None:
    lender.complete(lender.request(), 1 << 40)
    (buffer,) = lender.arena.completed()
    assert lender.arena.view(buffer).shape == (_SLOT_BYTES,)


def test_a_view_shows_the_valid_bytes_without_a_copy(lender: Lender) -> None:
    address = lender.request()
    ctypes.memset(address, 7, 40)
    lender.complete(address, 40)
    (buffer,) = lender.arena.completed()
    view = lender.arena.view(buffer)
    assert view.ctypes.data == address
    assert (view == np.full(40, 7, np.uint8)).all()


def _keeps_memory(lender: Lender, address: int, valid_bytes: int) -> bool:
    """Fill a lent buffer, let it be released, and look whether its pages are still there."""
    ctypes.memset(address, 7, valid_bytes)
    lender.complete(address, valid_bytes)
    (buffer,) = lender.arena.completed()
    last_byte = lender.arena.view(buffer)[-1:]
    lender.arena.release(buffer)
    return bool(last_byte[0])


def test_memory_goes_back_after_use_but_not_for_a_few_pages(lender: Lender) -> None:
    third = [lender.request() for _ in range(3)][2]
    assert not _keeps_memory(lender, third, _SLOT_BYTES * 4 // 5)
    assert _keeps_memory(lender, lender.request(), 4096)


def test_first_slots_stay_warm_while_well_filled_and_cool_down_after(lender: Lender) -> None:
    full = _SLOT_BYTES * 4 // 5
    first = lender.request()
    assert _keeps_memory(lender, first, full)
    assert lender.request() == first
    assert not _keeps_memory(lender, first, 4096)
    assert not any(ctypes.string_at(first, full))


def test_a_forked_child_lends_only_overflow_and_leaves_the_parent_alone() -> None:
    code = """
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
from test_arena import BufferArena, Lender
lender = Lender(BufferArena(3, 1 << 20))
addresses = [lender.request() for _ in range(2)]
child = os.fork()
if child == 0:
    overflow = {lender.request() for _ in range(5)}
    lender.complete(addresses[0], 56)
    right = len(overflow) == 1 and not overflow & set(addresses)
    os._exit(0 if right and not lender.arena.completed() else 1)
_, status = os.waitpid(child, 0)
assert status == 0
assert (lender.arena.requests, lender.arena.slots_out) == (2, 2)
lender.complete(addresses[0], 56)
assert len(lender.arena.completed()) == 1
"""
    subprocess.run([sys.executable, "-c", code, __file__], check=True, timeout=30)


@pytest.mark.parametrize(("slots", "size"), [(0, 4096), (1, 0), (1, mmap.PAGESIZE + 8)])
def test_an_arena_has_slots_of_whole_pages(slots: int, size: int) -> None:
    with pytest.raises(ValueError, match="whole pages"):
        BufferArena(slots, size)


def test_the_process_has_one_arena_of_256_mib() -> None:
    arena = process_arena()
    assert arena is process_arena()
    assert (arena.slot_count, arena.slot_bytes) == (32, 8 << 20)


@pytest.fixture
def other_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks.machine_code, "CALLBACKS", {})
    monkeypatch.delenv("MSMON_PYTHON_CALLBACKS", raising=False)


@pytest.mark.usefixtures("other_cpu")
def test_without_native_code_an_arena_is_refused() -> None:
    with pytest.raises(NativeCodeUnavailable, match="no native callbacks for this CPU") as raised:
        BufferArena(1, _SLOT_BYTES)
    assert "MSMON_PYTHON_CALLBACKS=1" in raised.value.next_step


@pytest.mark.usefixtures("other_cpu")
def test_python_callbacks_are_taken_where_the_user_accepts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MSMON_PYTHON_CALLBACKS", "1")
    lender = Lender(BufferArena(1, _SLOT_BYTES))
    lender.complete(lender.request(), 56)
    assert len(lender.arena.completed()) == 1


def arena_under_limit(spare_bytes: int) -> str:
    """Return what a process that may have so much more address space gets."""
    code = f"""
import resource
from msmon.errors import NativeCodeUnavailable
from msmon.ffi.arena import process_arena
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + {spare_bytes}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    print(process_arena().slot_count)
except NativeCodeUnavailable as error:
    print(error.next_step)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_with_little_address_space_the_arena_is_smaller() -> None:
    assert arena_under_limit(1 << 30) == "32"
    assert arena_under_limit(100 << 20) == "8"


def test_with_no_address_space_the_limit_is_named() -> None:
    assert "ulimit -v" in arena_under_limit(16 << 20)
