"""The fifteen functions that libmspti.so exports, as one table to hold against its headers.

Every function is listed with argument types, result type and checker; the checker becomes
ctypes' ``errcheck``, so no caller looks at a result code. ``None`` says that none applies.
Sources: mspti_activity.h, mspti_callback.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msmon.errors import MsptiError
from msmon.ffi.codes import Result, next_step, result_name

Checker = Callable[[str, int], Any]
"""Takes the function's name and its result; returns what the call returns, or raises."""

ENUM = ctypes.c_uint32
"""Every C enum of MSPTI; ``msptiResult`` too."""

BUFFER_REQUEST = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_size_t),
)
"""``msptiBuffersCallbackRequestFunc(uint8_t **buffer, size_t *size, size_t *max_records)``."""

BUFFER_COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
"""``msptiBuffersCallbackCompleteFunc(uint8_t *buffer, size_t size, size_t valid_size)``."""


def must_succeed(function: str, result: int) -> None:
    """Raise MsptiError unless the result is ``MSPTI_SUCCESS``."""
    if result != Result.MSPTI_SUCCESS:
        raise MsptiError(function, result, result_name(result), next_step(function, result))


def success_or_end(function: str, result: int) -> bool:
    """Return whether there was a record; the end of the buffer is not an error."""
    if result == Result.MSPTI_ERROR_MAX_LIMIT_REACHED:
        return False
    must_succeed(function, result)
    return True


@dataclass(frozen=True)
class CFunction:
    """Prototype of one exported function."""

    name: str
    argtypes: tuple[Any, ...]
    restype: Any
    check: Checker | None

    def bind(self, address: int) -> Callable[..., Any]:
        """Return the function at ``address`` as a callable that releases the GIL.

        ``CFUNCTYPE``, as ``CDLL``, drops the GIL around the call; ``PYFUNCTYPE`` would keep it
        and with it the deadlock that native callbacks avoid.
        """
        function = ctypes.CFUNCTYPE(self.restype, *self.argtypes)(address)
        check = self.check
        if check is not None:
            name = self.name

            def errcheck(result: Any, _function: Any, _arguments: Any) -> Any:
                return check(name, result)

            function.errcheck = errcheck
        return function


FUNCTIONS: tuple[CFunction, ...] = (
    CFunction(
        "msptiActivityRegisterCallbacks", (ctypes.c_void_p, ctypes.c_void_p), ENUM, must_succeed
    ),
    CFunction("msptiActivityEnable", (ENUM,), ENUM, must_succeed),
    CFunction("msptiActivityDisable", (ENUM,), ENUM, must_succeed),
    CFunction("msptiActivityIsEnabled", (ENUM,), ctypes.c_bool, None),
    CFunction("msptiActivityEnableMarkerDomain", (ctypes.c_char_p,), ENUM, must_succeed),
    CFunction("msptiActivityDisableMarkerDomain", (ctypes.c_char_p,), ENUM, must_succeed),
    CFunction(
        "msptiActivityGetNextRecord",
        (ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)),
        ENUM,
        success_or_end,
    ),
    CFunction("msptiActivityFlushAll", (ctypes.c_uint32,), ENUM, must_succeed),
    CFunction("msptiActivityFlushPeriod", (ctypes.c_uint32,), ENUM, must_succeed),
    CFunction(
        "msptiActivityPushExternalCorrelationId", (ENUM, ctypes.c_uint64), ENUM, must_succeed
    ),
    CFunction(
        "msptiActivityPopExternalCorrelationId",
        (ENUM, ctypes.POINTER(ctypes.c_uint64)),
        ENUM,
        must_succeed,
    ),
    CFunction(
        "msptiSubscribe",
        (ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_void_p),
        ENUM,
        must_succeed,
    ),
    CFunction("msptiUnsubscribe", (ctypes.c_void_p,), ENUM, must_succeed),
    CFunction(
        "msptiEnableCallback", (ctypes.c_uint32, ctypes.c_void_p, ENUM, ENUM), ENUM, must_succeed
    ),
    CFunction("msptiEnableDomain", (ctypes.c_uint32, ctypes.c_void_p, ENUM), ENUM, must_succeed),
)
"""Everything that libmspti.so exports, in the order of the headers."""
