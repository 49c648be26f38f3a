"""The fifteen functions that libmspti.so exports, as two tables to hold against its headers.

``SIGNATURES`` gives the types of each function, ``CHECKERS`` what its result means. A checker
becomes ctypes' ``errcheck``, so no caller looks at a result code.
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


_PVOID = ctypes.c_void_p
_VOID_OUT = ctypes.POINTER(ctypes.c_void_p)
_U64_OUT = ctypes.POINTER(ctypes.c_uint64)

SIGNATURES: dict[str, tuple[tuple[Any, ...], Any]] = {
    # mspti_activity.h
    "msptiActivityRegisterCallbacks": ((_PVOID, _PVOID), ENUM),
    "msptiActivityEnable": ((ENUM,), ENUM),
    "msptiActivityDisable": ((ENUM,), ENUM),
    "msptiActivityIsEnabled": ((ENUM,), ctypes.c_bool),
    "msptiActivityEnableMarkerDomain": ((ctypes.c_char_p,), ENUM),
    "msptiActivityDisableMarkerDomain": ((ctypes.c_char_p,), ENUM),
    "msptiActivityGetNextRecord": ((_PVOID, ctypes.c_size_t, _VOID_OUT), ENUM),
    "msptiActivityFlushAll": ((ctypes.c_uint32,), ENUM),
    "msptiActivityFlushPeriod": ((ctypes.c_uint32,), ENUM),
    "msptiActivityPushExternalCorrelationId": ((ENUM, ctypes.c_uint64), ENUM),
    "msptiActivityPopExternalCorrelationId": ((ENUM, _U64_OUT), ENUM),
    # mspti_callback.h
    "msptiSubscribe": ((_VOID_OUT, _PVOID, _PVOID), ENUM),
    "msptiUnsubscribe": ((_PVOID,), ENUM),
    "msptiEnableCallback": ((ctypes.c_uint32, _PVOID, ENUM, ENUM), ENUM),
    "msptiEnableDomain": ((ctypes.c_uint32, _PVOID, ENUM), ENUM),
}
"""Function → (argument types, result type), in the order of the headers."""

CHECKERS: dict[str, Checker | None] = {
    "msptiActivityRegisterCallbacks": must_succeed,
    "msptiActivityEnable": must_succeed,
    "msptiActivityDisable": must_succeed,
    "msptiActivityIsEnabled": None,  # returns the answer, no result code
    "msptiActivityEnableMarkerDomain": must_succeed,
    "msptiActivityDisableMarkerDomain": must_succeed,
    "msptiActivityGetNextRecord": success_or_end,
    "msptiActivityFlushAll": must_succeed,
    "msptiActivityFlushPeriod": must_succeed,
    "msptiActivityPushExternalCorrelationId": must_succeed,
    "msptiActivityPopExternalCorrelationId": must_succeed,
    "msptiSubscribe": must_succeed,
    "msptiUnsubscribe": must_succeed,
    "msptiEnableCallback": must_succeed,
    "msptiEnableDomain": must_succeed,
}
"""Function → checker of its result; every function is listed, None where no check applies."""

FUNCTIONS: tuple[CFunction, ...] = tuple(
    CFunction(name, argtypes, restype, CHECKERS[name])
    for name, (argtypes, restype) in SIGNATURES.items()
)
"""Everything that libmspti.so exports, in the order of the headers."""
