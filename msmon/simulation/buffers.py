"""MSPTI's buffer protocol: when a buffer is asked for, full, and delivered by which thread.

A record finds the current buffer at 80 % or more and rotates: the buffer joins the queue of
full ones, a new one is requested while lock B (``_current_lock``) is held, and the record
goes into it. One new thread per full buffer calls complete. FlushAll delivers the queue
itself, waits for those threads, then delivers the current buffer with lock B held.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from msmon.ffi.prototypes import BUFFER_COMPLETE, BUFFER_REQUEST
from msmon.records.batch import Column

FULL_SHARE = np.float32(0.8)


@dataclass
class ActivityBuffer:
    """The buffer that one request returned. Its address is 0 where the request declined."""

    address: int
    size_bytes: int
    valid_bytes: int = 0

    @property
    def full_bytes(self) -> int:
        """Valid bytes from which on the next record rotates."""
        return int(np.ceil(FULL_SHARE * np.float32(self.size_bytes)))


class ActivityBuffers:
    """The current buffer, the queue of full ones, and the threads that deliver them."""

    def __init__(self, lost_delivery_thread: bool) -> None:
        self._lost_delivery_thread = lost_delivery_thread
        self._request: Callable[..., Any] | None = None
        self._complete: Callable[..., Any] | None = None
        self._current_lock = threading.Lock()
        self._current: ActivityBuffer | None = None
        self._queue_changed = threading.Condition()
        self._full: list[ActivityBuffer] = []
        self._workers: list[threading.Thread] = []
        self._delivery_thread: threading.Thread | None = None

    def register(self, request_address: int, complete_address: int) -> None:
        """Take over new callbacks. Buffers that are out complete through the new one, too."""
        self._request = BUFFER_REQUEST(request_address)
        self._complete = BUFFER_COMPLETE(complete_address)
        if self._delivery_thread is None and not self._lost_delivery_thread:
            self._delivery_thread = threading.Thread(
                target=self._deliver_full, name="ActivityManager", daemon=True
            )
            self._delivery_thread.start()

    def append(self, data: Column, offsets: Column) -> list[slice]:
        """Record the packed records that lie between ``offsets`` (shape (n + 1,)) in ``data``.

        Returns the slices of records that found room in a buffer; the others are dropped.
        """
        recorded = []
        first, count = 0, len(offsets) - 1
        with self._current_lock:
            while first < count:
                buffer = self._buffer_for_next_record()
                if buffer is None:
                    break
                last = _last_that_fits(buffer, offsets, first)
                if last == first:
                    first += 1
                    continue
                begin, size = int(offsets[first]), int(offsets[last] - offsets[first])
                target = buffer.address + buffer.valid_bytes
                ctypes.memmove(target, data.ctypes.data + begin, size)
                buffer.valid_bytes += size
                recorded.append(slice(first, last))
                first = last
        return recorded

    def _buffer_for_next_record(self) -> ActivityBuffer | None:
        """Return the buffer for the next record, or None where no record can be kept."""
        current = self._current
        if current is None or current.valid_bytes >= current.full_bytes:
            if current is not None:
                with self._queue_changed:
                    self._full.append(current)
                    self._queue_changed.notify()
            current = self._current = self._requested()
        declined_for_good = current is not None and not current.address and current.size_bytes
        return None if declined_for_good else current

    def _requested(self) -> ActivityBuffer | None:
        if self._request is None:
            return None
        address, size, max_records = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self._request(ctypes.byref(address), ctypes.byref(size), ctypes.byref(max_records))
        return ActivityBuffer(address.value or 0, size.value)

    def flush_all(self) -> None:
        """Deliver everything on the calling thread, as msptiActivityFlushAll does."""
        with self._queue_changed:
            full, self._full = self._full, []
        for buffer in full:
            self._completed(buffer)
        with self._queue_changed:
            for worker in self._workers:
                worker.join()
            self._workers.clear()
        with self._current_lock:
            current, self._current = self._current, None
            if current is not None:
                self._completed(current)

    def _completed(self, buffer: ActivityBuffer) -> None:
        if self._complete is not None:
            self._complete(buffer.address, buffer.size_bytes, buffer.valid_bytes)

    def _deliver_full(self) -> None:
        while True:
            with self._queue_changed:
                while not self._full:
                    self._queue_changed.wait()
                full, self._full = self._full, []
                for buffer in full:
                    worker = threading.Thread(target=self._completed, args=(buffer,), daemon=True)
                    worker.start()
                    self._workers.append(worker)


def _last_that_fits(buffer: ActivityBuffer, offsets: Column, first: int) -> int:
    """Return the record after the last one that goes into the buffer before it rotates."""
    begin = offsets[first]
    room_bytes = buffer.size_bytes - buffer.valid_bytes if buffer.address else 0
    fitting = int(np.searchsorted(offsets, begin + room_bytes, side="right")) - 1
    filling = int(np.searchsorted(offsets, begin + buffer.full_bytes - buffer.valid_bytes))
    return max(first, min(fitting, filling, len(offsets) - 1))
