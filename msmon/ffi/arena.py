"""The buffers that MSPTI fills: reserved address space, lent out slot by slot.

MSPTI takes and completes slots through the native callbacks at any time and from any thread;
Python looks for completed ones, reads them and frees them. Nothing here blocks.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from msmon.errors import NativeCodeUnavailable
from msmon.ffi.callbacks import (
    COMPLETED,
    FREE,
    STATE_BITS,
    STATE_MASK,
    TAKEN,
    Callbacks,
    ControlHeader,
    Slot,
    make_callbacks,
)

_GIVE_BACK_BYTES = 64 << 10
"""A slot written no further than this keeps its pages: giving them back costs more."""

_SLOT_COUNTS = (32, 16, 8, 4)
"""Slots of the process's arena: as many as there is address space for."""

_WARM_SLOTS = 2
"""Slots that keep their pages while buffers come in well filled: the one being written and the
one being read. Fresh pages cost the recording threads a fifth more per record."""

_HEADER_BYTES = ctypes.sizeof(ControlHeader)
_SLOT_BYTES = ctypes.sizeof(Slot)
_WORDS_PER_SLOT = _SLOT_BYTES // 8


@dataclass(frozen=True)
class CompletedBuffer:
    """A buffer that MSPTI has given back.

    ``order`` is the number of the request that took it: buffers complete in any order, and
    records are oldest in the one with the smallest. ``valid_bytes`` of it hold records.
    """

    slot: int
    address: int
    valid_bytes: int
    order: int


class BufferArena:
    """``slot_count`` buffers of ``slot_bytes`` each, plus one for overflow.

    Address space is reserved at once; memory follows the load, as pages go back to the kernel
    after use except in the first slots of a busy arena. Callbacks can't be
    unregistered, so an arena that was given to MSPTI must live until the process ends; see
    :func:`process_arena`. In a forked child nobody reads buffers: there, every request gets the
    overflow slot. Python's side belongs to one thread, the one that reads buffers.

    Raises NativeCodeUnavailable (see :func:`msmon.ffi.callbacks.make_callbacks`).
    """

    def __init__(
        self,
        slot_count: int = 32,
        slot_bytes: int = 8 << 20,
        callbacks_for: Callable[[int], Callbacks] = make_callbacks,
    ) -> None:
        if slot_count < 1 or slot_bytes < mmap.PAGESIZE or slot_bytes % mmap.PAGESIZE:
            raise ValueError("an arena needs at least one slot, and slots of whole pages")
        self.slot_count = slot_count
        self.slot_bytes = slot_bytes
        self._memory = _reserve((slot_count + 1) * slot_bytes)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._address = int(self._bytes.ctypes.data)
        self._control_memory = _reserve(_HEADER_BYTES + slot_count * _SLOT_BYTES)
        self._header = ControlHeader.from_buffer(self._control_memory)
        self._header.slot_count = slot_count
        self._header.slot_bytes = slot_bytes
        self._header.arena = self._address
        self._header.overflow_address = self._address + slot_count * slot_bytes
        slots: np.ndarray[Any, np.dtype[np.uint64]] = np.frombuffer(
            self._control_memory, np.uint64, offset=_HEADER_BYTES
        ).reshape(slot_count, _WORDS_PER_SLOT)
        self._words = slots[:, 0]
        self._orders = slots[:, 1]
        control_address = ctypes.addressof(self._header)
        self._word_addresses = [
            control_address + _HEADER_BYTES + index * _SLOT_BYTES for index in range(slot_count)
        ]
        self._touched_bytes = [0] * slot_count
        self._callbacks = callbacks_for(control_address)
        os.register_at_fork(after_in_child=self._retire)

    def _retire(self) -> None:
        self._header.slot_count = 0

    @property
    def request_address(self) -> int:
        """Address of the ``msptiBuffersCallbackRequestFunc``."""
        return self._callbacks.request_address

    @property
    def complete_address(self) -> int:
        """Address of the ``msptiBuffersCallbackCompleteFunc``."""
        return self._callbacks.complete_address

    def completed(self) -> list[CompletedBuffer]:
        """Return the buffers waiting to be read, in the order MSPTI asked for them."""
        buffers = []
        for slot in np.flatnonzero((self._words & STATE_MASK) == COMPLETED).tolist():
            word = self._callbacks.load(self._word_addresses[slot])  # acquire, then read the data
            buffers.append(
                CompletedBuffer(
                    slot,
                    self._address + slot * self.slot_bytes,
                    min(word >> STATE_BITS, self.slot_bytes),
                    int(self._orders[slot]),
                )
            )
        return sorted(buffers, key=lambda buffer: buffer.order)

    def view(self, buffer: CompletedBuffer) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the valid bytes, shape (valid_bytes,), without a copy; good until release."""
        start = buffer.slot * self.slot_bytes
        return self._bytes[start : start + buffer.valid_bytes]

    def release(self, buffer: CompletedBuffer) -> None:
        """Give a buffer back to MSPTI, and its memory to the kernel where that is worth it."""
        slot = buffer.slot
        self._touched_bytes[slot] = max(self._touched_bytes[slot], buffer.valid_bytes)
        warm = slot < _WARM_SLOTS and buffer.valid_bytes >= self.slot_bytes // 2
        if not warm and self._touched_bytes[slot] > _GIVE_BACK_BYTES:
            length = -(-self._touched_bytes[slot] // mmap.PAGESIZE) * mmap.PAGESIZE
            self._memory.madvise(mmap.MADV_DONTNEED, slot * self.slot_bytes, length)
            self._touched_bytes[slot] = 0
        self._callbacks.store(self._word_addresses[slot], FREE)

    @property
    def slots_out(self) -> int:
        """Slots that MSPTI has and hasn't completed yet (its current buffer is one)."""
        return int(np.count_nonzero((self._words & STATE_MASK) == TAKEN))

    @property
    def slots_free(self) -> int:
        """Slots that MSPTI can still ask for."""
        return int(np.count_nonzero((self._words & STATE_MASK) == FREE))

    @property
    def requests(self) -> int:
        """Number of the next request: buffers with a smaller ``order`` were asked for before."""
        return int(self._header.requests)

    @property
    def overflow_requests(self) -> int:
        """Requests that found no free slot since the arena was made."""
        return int(self._header.overflow_requests)

    @property
    def overflow_bytes(self) -> int:
        """Bytes of records that were thrown away in the overflow slot."""
        return int(self._header.overflow_bytes)


def _reserve(length: int) -> mmap.mmap:
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)  # named from Python 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return mmap.mmap(-1, length, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


@functools.cache
def process_arena() -> BufferArena:
    """Return the one arena that this process gives to MSPTI; made on first use, never unmapped.

    It has fewer slots where address space is limited (``ulimit -v``). Raises
    NativeCodeUnavailable where native callbacks can't run or not even a few slots fit.
    """
    for slot_count in _SLOT_COUNTS:
        try:
            return BufferArena(slot_count)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
    raise NativeCodeUnavailable(
        "this process may have no more address space, and activity buffers need some",
        "raise its limit (ulimit -v)",
    )
