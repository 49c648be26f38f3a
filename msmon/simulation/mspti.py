"""The simulated MSPTI library: its fifteen functions, with the rules and codes of the real ones.

They are C function pointers, so that callers use them as those of the real library. The codes and
the order of checks are those of mspti_activity.h, mspti_callback.h and MSPTI's behaviour.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from msmon.ffi.codes import Result
from msmon.ffi.mspti import Mspti
from msmon.ffi.prototypes import FUNCTIONS
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.layout import PRELOAD_KINDS
from msmon.settings.simulation import (
    SimulatedRank,
    SimulationOptions,
    simulation_of,
)
from msmon.simulation.buffers import ActivityBuffers
from msmon.simulation.device import SimulatedDevice
from msmon.simulation.ledger import Ledger

MAX_DOMAIN_BYTES = 254
CALLBACK_DOMAINS = (1, 2)
"""``MSPTI_CB_DOMAIN_RUNTIME`` and ``MSPTI_CB_DOMAIN_HCCL``."""
MAX_CALLBACK_ID = 63
SUCCESS = Result.MSPTI_SUCCESS
INVALID = Result.MSPTI_ERROR_INVALID_PARAMETER


class SimulatedMspti:
    """One simulated library. ``addresses`` maps the names of its functions to C addresses.

    Keep it alive as long as anybody may call the addresses. In a forked child the functions do
    nothing and return 0.
    """

    def __init__(
        self, options: SimulationOptions, rank: SimulatedRank, ld_preload: str = ""
    ) -> None:
        self._options = options
        self._rank = rank
        self._process_id = os.getpid()
        self._preloaded = bool(options.preload) or "libmspti.so" in ld_preload
        self._buffers = ActivityBuffers(bool(options.lost_delivery_thread))
        self._ledger = Ledger()
        self._device = SimulatedDevice(options, rank, self._process_id, self._buffers, self._ledger)
        self._enabled: set[int] = set()
        self._external_ids: dict[int, list[int]] = {}
        self._subscription = ctypes.c_uint64()  # its address is the handle
        self._subscribed = False
        self._reading = threading.local()
        self._pointers = self._function_pointers()
        self.addresses: dict[str, int] = {
            name: ctypes.cast(pointer, ctypes.c_void_p).value or 0
            for name, pointer in self._pointers.items()
        }

    @property
    def emitted(self) -> dict[ActivityKind, int]:
        """Kind → number of records that were written into a buffer."""
        return self._ledger.emitted

    @property
    def ledger(self) -> Ledger:
        """All records that were written, by operator."""
        return self._ledger

    def close(self) -> None:
        """Stop the device, and write the ledger if the options name a file for it."""
        if os.getpid() != self._process_id:
            return
        self._device.stop()
        if self._options.ledger:
            path = self._options.ledger.replace("{rank}", str(self._rank.rank))
            self._ledger.write(path)

    def _function_pointers(self) -> dict[str, Any]:
        behaviours: dict[str, Callable[..., int]] = {
            "msptiActivityRegisterCallbacks": self._register_callbacks,
            "msptiActivityEnable": self._enable,
            "msptiActivityDisable": self._disable,
            "msptiActivityIsEnabled": self._is_enabled,
            "msptiActivityEnableMarkerDomain": self._enable_marker_domain,
            "msptiActivityDisableMarkerDomain": self._disable_marker_domain,
            "msptiActivityGetNextRecord": self._get_next_record,
            "msptiActivityFlushAll": self._flush_all,
            "msptiActivityFlushPeriod": self._flush_period,
            "msptiActivityPushExternalCorrelationId": self._push_external_id,
            "msptiActivityPopExternalCorrelationId": self._pop_external_id,
            "msptiSubscribe": self._subscribe,
            "msptiUnsubscribe": self._unsubscribe,
            "msptiEnableCallback": self._enable_callback,
            "msptiEnableDomain": self._enable_domain,
        }
        return {
            function.name: ctypes.CFUNCTYPE(function.restype, *function.argtypes)(
                self._unless_forked(behaviours[function.name])
            )
            for function in FUNCTIONS
        }

    def _unless_forked(self, behaviour: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            return behaviour(*arguments) if os.getpid() == self._process_id else SUCCESS

        return call

    def _register_callbacks(self, request: int | None, complete: int | None) -> int:
        if not request or not complete:
            return INVALID
        self._buffers.register(request, complete)
        return SUCCESS

    def _enable(self, number: int) -> int:
        if number not in DTYPES:
            return INVALID
        kind = ActivityKind(number)
        if kind in PRELOAD_KINDS and not self._preloaded:
            return Result.MSPTI_ERROR_WITHOUT_LD_PRELOAD
        self._enabled.add(kind)
        self._device.enable(kind)
        return SUCCESS

    def _disable(self, number: int) -> int:
        if number not in DTYPES:
            return INVALID
        self._device.disable(ActivityKind(number))
        self._enabled.discard(number)
        return SUCCESS

    def _is_enabled(self, number: int) -> bool:
        return number in self._enabled

    def _enable_marker_domain(self, name: bytes | None) -> int:
        return self._switch_marker_domain(name, enabled=True)

    def _disable_marker_domain(self, name: bytes | None) -> int:
        return self._switch_marker_domain(name, enabled=False)

    def _switch_marker_domain(self, name: bytes | None, enabled: bool) -> int:
        if name is None or len(name) > MAX_DOMAIN_BYTES:
            return INVALID
        self._device.switch_domain(name.decode("utf-8", "surrogateescape"), enabled)
        return SUCCESS

    def _get_next_record(self, buffer: int | None, valid_bytes: int, record: Any) -> int:
        """Return the next record. As in MSPTI, the position is the thread's, reset at the end."""
        if not buffer:
            return INVALID
        position = getattr(self._reading, "position", 0)
        if position >= valid_bytes:
            self._reading.position = 0
            return Result.MSPTI_ERROR_MAX_LIMIT_REACHED
        kind = ctypes.c_uint32.from_address(buffer + position).value
        if kind not in DTYPES:
            return Result.MSPTI_ERROR_INNER
        record[0] = ctypes.c_void_p(buffer + position)
        self._reading.position = position + DTYPES[ActivityKind(kind)].itemsize
        return SUCCESS

    def _flush_all(self, _flag: int) -> int:
        self._buffers.flush_all()
        return SUCCESS

    def _flush_period(self, _period_ms: int) -> int:
        """Do nothing: full buffers are delivered at once."""
        return SUCCESS

    def _push_external_id(self, kind: int, external_id: int) -> int:
        self._external_ids.setdefault(kind, []).append(external_id)
        self._announce_external_ids()
        return SUCCESS

    def _pop_external_id(self, kind: int, last_id: Any) -> int:
        if not last_id:
            return INVALID
        if not self._external_ids.get(kind):
            return Result.MSPTI_ERROR_QUEUE_EMPTY
        last_id[0] = self._external_ids[kind].pop()
        self._announce_external_ids()
        return SUCCESS

    def _announce_external_ids(self) -> None:
        self._device.push_ids({kind: ids[-1] for kind, ids in self._external_ids.items() if ids})

    def _subscribe(self, handle: Any, _callback: int | None, _userdata: int | None) -> int:
        if not handle:
            return INVALID
        if self._subscribed:
            return Result.MSPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
        self._subscribed = True
        handle[0] = ctypes.c_void_p(ctypes.addressof(self._subscription))
        self._device.start()
        return SUCCESS

    def _unsubscribe(self, handle: int | None) -> int:
        if not self._subscribed:
            return SUCCESS
        if handle != ctypes.addressof(self._subscription):
            return INVALID
        self._subscribed = False
        self.close()
        return SUCCESS

    def _enable_callback(
        self, _enable: int, handle: int | None, domain: int, callback_id: int
    ) -> int:
        if callback_id > MAX_CALLBACK_ID:
            return INVALID
        return self._enable_domain(_enable, handle, domain)

    def _enable_domain(self, _enable: int, handle: int | None, domain: int) -> int:
        """Accept the switch; the simulated job calls no function that has a callback."""
        if not self._preloaded:
            return Result.MSPTI_ERROR_WITHOUT_LD_PRELOAD
        known = self._subscribed and handle == ctypes.addressof(self._subscription)
        return SUCCESS if known and domain in CALLBACK_DOMAINS else INVALID


_loaded: list[SimulatedMspti] = []
"""Keeps them alive, because C code may call their addresses until the process ends."""


def load_simulated(environ: Mapping[str, str]) -> Mspti:
    """Return the simulated MSPTI that MSMON_SIMULATE and the rank variables describe.

    Raises UsageError naming the option or variable that is wrong.
    """
    options, rank = simulation_of(environ)
    simulation = SimulatedMspti(options, rank, environ.get("LD_PRELOAD", ""))
    _loaded.append(simulation)
    atexit.register(simulation.close)
    return Mspti(simulation.addresses, origin="simulated")
