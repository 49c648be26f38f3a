"""The two buffer callbacks given to MSPTI, and the control block that they share with Python.

MSPTI asks for a buffer while it holds the lock that every recording thread takes. A callback
written in Python needs the GIL there; if the thread that holds the GIL records an activity,
both wait for ever. Hence machine code (``assembly/callbacks_*.S``) that touches nothing but
the control block.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msmon.errors import NativeCodeUnavailable
from msmon.ffi import machine_code, prototypes
from msmon.ffi.executable import map_code

FREE = 0
TAKEN = 1
COMPLETED = 2
STATE_BITS = 2
STATE_MASK = (1 << STATE_BITS) - 1
"""A slot's word is ``valid_bytes << STATE_BITS | state``."""


class ControlHeader(ctypes.Structure):
    """Head of the control block; one :class:`Slot` per buffer slot follows it."""

    _fields_ = (
        ("slot_count", ctypes.c_uint64),
        ("slot_bytes", ctypes.c_uint64),
        ("arena", ctypes.c_uint64),
        ("overflow_address", ctypes.c_uint64),
        ("requests", ctypes.c_uint64),
        ("overflow_requests", ctypes.c_uint64),
        ("overflow_bytes", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
    )


class Slot(ctypes.Structure):
    """State of one buffer slot: its word, and the number of the request that took it."""

    _fields_ = (("word", ctypes.c_uint64), ("order", ctypes.c_uint64))


@dataclass(frozen=True)
class Callbacks:
    """Addresses for ``msptiActivityRegisterCallbacks``, and ordered access to a slot's word.

    ``load`` reads a word with acquire order, ``store`` writes one with release order.
    ``kept_alive`` holds what C refers to.
    """

    request_address: int
    complete_address: int
    load: Callable[[int], int]
    store: Callable[[int, int], None]
    kept_alive: tuple[Any, ...] = field(default=(), repr=False)


def make_callbacks(control_address: int) -> Callbacks:
    """Return native callbacks for a control block, or Python ones where the user accepts them.

    Raises NativeCodeUnavailable when native code can't run and ``MSMON_PYTHON_CALLBACKS`` is
    not 1.
    """
    try:
        return native_callbacks(control_address)
    except NativeCodeUnavailable:
        if os.environ.get("MSMON_PYTHON_CALLBACKS") != "1":
            raise
        return python_callbacks(control_address)


def native_callbacks(control_address: int) -> Callbacks:
    """Map the machine code for this CPU, bound to one control block.

    Raises NativeCodeUnavailable for another CPU or where executable memory is forbidden.
    """
    machine = os.uname().machine
    code = machine_code.CALLBACKS.get(machine)
    if code is None or struct.calcsize("P") != 8:
        raise NativeCodeUnavailable(
            f"msmon has no native callbacks for this CPU ({machine}, "
            f"{8 * struct.calcsize('P')}-bit)",
            "use x86_64 or aarch64, or set MSMON_PYTHON_CALLBACKS=1 and accept that the job "
            "can hang",
        )
    offset = machine_code.CONTROL_OFFSET
    base = map_code(code[:offset] + struct.pack("<Q", control_address))
    load = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)
    store = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)
    return Callbacks(
        request_address=base + machine_code.REQUEST_OFFSET,
        complete_address=base + machine_code.COMPLETE_OFFSET,
        load=load(base + machine_code.LOAD_OFFSET),
        store=store(base + machine_code.STORE_OFFSET),
    )


def python_callbacks(control_address: int) -> Callbacks:
    """Return the same two callbacks written in Python: the GIL is their only lock.

    They can hang the process (see the module's text), so they are only for machines where
    native code can't run.
    """
    header = ControlHeader.from_address(control_address)
    first_slot = control_address + ctypes.sizeof(ControlHeader)
    slots = (Slot * header.slot_count).from_address(first_slot)

    def request(buffer: Any, size: Any, max_records: Any) -> None:
        order = header.requests
        header.requests = order + 1
        size[0] = header.slot_bytes
        max_records[0] = 0
        for index in range(header.slot_count):
            if slots[index].word == FREE:
                slots[index].word = TAKEN
                slots[index].order = order
                buffer[0] = header.arena + index * header.slot_bytes
                return
        header.overflow_requests += 1
        buffer[0] = header.overflow_address

    def complete(buffer: int | None, size: int, valid_bytes: int) -> None:
        if buffer == header.overflow_address:
            header.overflow_bytes += valid_bytes
            return
        index = ((buffer or 0) - header.arena) // header.slot_bytes
        if 0 <= index < header.slot_count and slots[index].word == TAKEN:
            completed = valid_bytes << STATE_BITS | COMPLETED
            slots[index].word = completed if valid_bytes else FREE

    request_function = prototypes.BUFFER_REQUEST(request)
    complete_function = prototypes.BUFFER_COMPLETE(complete)
    return Callbacks(
        request_address=_address(request_function),
        complete_address=_address(complete_function),
        load=lambda address: ctypes.c_uint64.from_address(address).value,
        store=lambda address, value: setattr(ctypes.c_uint64.from_address(address), "value", value),
        kept_alive=(request_function, complete_function),
    )


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
