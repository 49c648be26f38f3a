"""Record activities while holding the GIL, as an extension module may; run in a subprocess.

``python record_holding_gil.py native|python``: which callbacks MSPTI gets. The main thread
records through ``ctypes.PyDLL``, two native threads record under the same lock of the library,
and a collector thread flushes and drains. Prints "recording", then one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections import Counter

from msmon.ffi import library
from msmon.ffi.arena import BufferArena
from msmon.ffi.callbacks import native_callbacks, python_callbacks
from msmon.ffi.walk import split
from msmon.records.kinds import ActivityKind

KINDS = (ActivityKind.Kernel, ActivityKind.AclAPI)
RECORDS_EACH = 1_000_000
MAIN_CALLS = 2_000
RECORDS_PER_CALL = 200


def drain(arena: BufferArena, received: Counter[str]) -> None:
    for buffer in arena.completed():
        for kind, records in split(arena.view(buffer)).parts.items():
            received[kind.name] += len(records)
        received["bytes"] += buffer.valid_bytes
        arena.release(buffer)


def main(callbacks: str) -> None:
    made_by = {"native": native_callbacks, "python": python_callbacks}[callbacks]
    arena = BufferArena(slot_count=16, slot_bytes=1 << 20, callbacks_for=made_by)
    mspti = library.load()
    path = library.locate().path
    released, held = ctypes.CDLL(path), ctypes.PyDLL(path)
    released.double_emitted.restype = ctypes.c_uint64
    released.double_dropped.restype = ctypes.c_uint64

    mspti.subscribe()
    mspti.register_callbacks(arena.request_address, arena.complete_address)
    for kind in KINDS:
        mspti.enable(kind)
    received: Counter[str] = Counter()
    stopping = threading.Event()

    def collect() -> None:
        while not stopping.wait(0.01):
            mspti.flush_all()
            drain(arena, received)

    collector = threading.Thread(target=collect)
    collector.start()
    print("recording", flush=True)
    mix = (ctypes.c_uint32 * 1)(ActivityKind.Kernel)
    each = ctypes.c_uint64(RECORDS_EACH)
    released.double_start_recording(
        ctypes.c_size_t(2), ctypes.c_uint64(0), mix, ctypes.c_size_t(1), each
    )
    for _ in range(MAIN_CALLS):
        held.double_record(ctypes.c_uint32(ActivityKind.AclAPI), ctypes.c_uint64(RECORDS_PER_CALL))
    released.double_join_recording()
    stopping.set()
    collector.join()
    for kind in KINDS:
        mspti.disable(kind)
    mspti.flush_all()
    drain(arena, received)
    emitted = {kind.name: released.double_emitted(ctypes.c_uint32(kind)) for kind in KINDS}
    report = {
        "emitted": emitted,
        "received": received,
        "dropped": released.double_dropped(),
        "overflow_bytes": arena.overflow_bytes,
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
