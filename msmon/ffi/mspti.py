"""MSPTI's functions as methods: Python values in and out, MsptiError instead of codes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from msmon.errors import LibraryUnavailable
from msmon.ffi.prototypes import FUNCTIONS
from msmon.records.kinds import ActivityKind


class Mspti:
    """One loaded MSPTI.

    ``addresses`` maps function names to addresses. A function that is missing (or 0) is
    tolerated here and raises LibraryUnavailable when it is called: older versions export
    fewer. ``origin`` says which library this is and why it was chosen.

    Every method raises MsptiError when MSPTI returns something other than success, and
    releases the GIL while MSPTI runs.
    """

    def __init__(self, addresses: Mapping[str, int], origin: str) -> None:
        self.origin = origin
        self._functions: dict[str, Callable[..., Any]] = {
            function.name: function.bind(addresses[function.name])
            for function in FUNCTIONS
            if addresses.get(function.name)
        }

    def _call(self, name: str, *arguments: Any) -> Any:
        function = self._functions.get(name)
        if function is None:
            raise LibraryUnavailable(
                f"{self.origin} has no function {name}", "install a newer CANN or leave this out"
            )
        return function(*arguments)

    def register_callbacks(self, request_address: int, complete_address: int) -> None:
        """Register the two buffer callbacks; they can be replaced but never unregistered."""
        self._call("msptiActivityRegisterCallbacks", request_address, complete_address)

    def enable(self, kind: ActivityKind) -> None:
        """Start collecting a kind. Result 6: it needs libmspti.so in LD_PRELOAD."""
        self._call("msptiActivityEnable", kind)

    def disable(self, kind: ActivityKind) -> None:
        """Stop collecting a kind; drains the driver first, which can take some 100 ms."""
        self._call("msptiActivityDisable", kind)

    def is_enabled(self, kind: ActivityKind) -> bool:
        """Return whether a kind is enabled. This stays true after :meth:`unsubscribe`."""
        checked = ActivityKind(kind)  # For an unknown number MSPTI reads past its array.
        return bool(self._call("msptiActivityIsEnabled", checked))

    def enable_marker_domain(self, name: str) -> None:
        """Record markers of a domain again; the name is at most 254 bytes."""
        self._call("msptiActivityEnableMarkerDomain", _encode(name))

    def disable_marker_domain(self, name: str) -> None:
        """Record no markers of a domain. The domain need not exist yet."""
        self._call("msptiActivityDisableMarkerDomain", _encode(name))

    def get_next_record(self, buffer_address: int, valid_bytes: int) -> int | None:
        """Return the address of the next record, or None at the end of the buffer.

        MSPTI keeps one position for each thread and resets it only at the end of a buffer. So
        read every buffer to its end on one thread. :mod:`msmon.ffi.walk` doesn't need MSPTI.
        """
        record = ctypes.c_void_p()
        found = self._call(
            "msptiActivityGetNextRecord", buffer_address, valid_bytes, ctypes.byref(record)
        )
        return record.value if found else None

    def flush_all(self) -> None:
        """Deliver every buffer, also the current one, and join MSPTI's delivery threads."""
        self._call("msptiActivityFlushAll", 1)

    def flush_period(self, period_ms: int) -> None:
        """Deliver full buffers every ``period_ms`` (0: never), but never the current one."""
        self._call("msptiActivityFlushPeriod", period_ms)

    def push_external_correlation_id(self, kind: int, external_id: int) -> None:
        """Push an id on the process-wide stack of an ``msptiExternalCorrelationKind``."""
        self._call("msptiActivityPushExternalCorrelationId", kind, external_id)

    def pop_external_correlation_id(self, kind: int) -> int:
        """Pop and return the last id pushed. Result 5: the stack is empty."""
        popped = ctypes.c_uint64()
        self._call("msptiActivityPopExternalCorrelationId", kind, ctypes.byref(popped))
        return popped.value

    def subscribe(self, callback_address: int = 0, userdata: int = 0) -> int:
        """Take the only subscription of the process, and return its handle. Result 2: taken."""
        handle = ctypes.c_void_p()
        self._call("msptiSubscribe", ctypes.byref(handle), callback_address, userdata)
        return handle.value or 0

    def unsubscribe(self, handle: int) -> None:
        """Give the subscription back. After the next one, kinds must be enabled again."""
        self._call("msptiUnsubscribe", handle)

    def enable_callback(self, enable: bool, handle: int, domain: int, callback_id: int) -> None:
        """Turn the callback for one function of an ``msptiCallbackDomain`` on or off."""
        self._call("msptiEnableCallback", int(enable), handle, domain, callback_id)

    def enable_domain(self, enable: bool, handle: int, domain: int) -> None:
        """Turn the callbacks for all functions of an ``msptiCallbackDomain`` on or off."""
        self._call("msptiEnableDomain", int(enable), handle, domain)


def _encode(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
