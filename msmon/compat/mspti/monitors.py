"""The monitors of the ``mspti`` package, which call a Python function for each record.

Callbacks run one after the other on msmon's recording thread, never inside MSPTI. Methods return
an :class:`MsptiResult` instead of raising, as in that package. Three things differ from it: two
monitors of one kind have two callbacks, a start that fails can be repeated, and memory is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from msmon.compat.mspti.data_classes import (
    CommunicationData,
    HcclData,
    KernelData,
    MarkerData,
    RangeMarkerData,
)
from msmon.compat.mspti.enums import MsptiResult
from msmon.compat.mspti.from_batches import (
    communication_data,
    hccl_data,
    kernel_data,
    mark_data,
    range_data,
)
from msmon.compat.mspti.subscription import SUCCESS, Subscription, result_of, say
from msmon.recording.loading import load
from msmon.recording.recording import FLUSH_INTERVAL_S
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.records.markers import MarkerPairing

MAX_PERIOD_MS = 2**32 - 1
MAX_BUFFER_MIB = 256

INVALID_PARAMETER = MsptiResult.MSPTI_ERROR_INVALID_PARAMETER

Record = TypeVar("Record")


_subscription = Subscription()


class BaseMonitor:
    """Base of all monitors. Its class methods act on the subscription that all share."""

    KIND: ActivityKind
    NAME = ""

    @classmethod
    def start_monitor(cls) -> MsptiResult:
        """Count one user more of the subscription. The first one subscribes."""
        return _subscription.open()

    @classmethod
    def stop_monitor(cls) -> MsptiResult:
        """Count one user less. The last one unsubscribes."""
        return _subscription.close()

    @classmethod
    def flush_all(cls) -> MsptiResult:
        """Deliver everything recorded so far. Returns after the callbacks have run."""
        return _subscription.flush()

    @classmethod
    def flush_period(cls, time_ms: int) -> MsptiResult:
        """Deliver every ``time_ms``; 0 means the default. Raises TypeError if it is no int."""
        if not isinstance(time_ms, int):
            raise TypeError(f"time_ms must be an int, not {type(time_ms).__name__}")
        if not 0 <= time_ms <= MAX_PERIOD_MS:
            say("ERROR", f"flush period {time_ms} is out of range (0 to {MAX_PERIOD_MS})")
            return INVALID_PARAMETER
        _subscription.set_flush_interval(time_ms / 1000 if time_ms else FLUSH_INTERVAL_S)
        return SUCCESS

    @classmethod
    def set_buffer_size(cls, size: int) -> MsptiResult:
        """Check ``size`` (MiB, 1 to 256), without effect: msmon has its own buffers."""
        valid = isinstance(size, int) and not isinstance(size, bool)
        if not valid or not 1 <= size <= MAX_BUFFER_MIB:
            say("ERROR", f"buffer size {size!r} is out of range (1 to {MAX_BUFFER_MIB} MiB)")
            return INVALID_PARAMETER
        return SUCCESS

    def stop(self) -> MsptiResult:
        """Deliver what was recorded so far, and stop this monitor."""
        if not _subscription.holds(self):
            return SUCCESS
        result = _subscription.remove(self)
        closed = self.stop_monitor()
        return result if result is not SUCCESS else closed

    def deliver(self, batch: Batch) -> None:
        """Call the callbacks for a batch of this monitor's kind."""
        raise NotImplementedError

    def _begin(self) -> MsptiResult:
        if _subscription.holds(self):
            return SUCCESS
        result = self.start_monitor()
        if result is not SUCCESS:
            return result
        result = _subscription.add(self)
        if result is not SUCCESS:
            self.stop_monitor()
        return result

    def _call(self, callback: Callable[[Any], Any], items: Iterable[Any]) -> None:
        for item in items:
            try:
                callback(item)
            except Exception as error:  # noqa: BLE001 - the user's callback; collection goes on
                say("ERROR", f"Call {self.NAME} callback failed. Exception: {error}")


class RecordMonitor(BaseMonitor, Generic[Record]):
    """Calls back for each record of its kind."""

    records: Callable[[Batch], Iterable[Record]]

    def __init__(self) -> None:
        self._callback: Callable[[Record], Any] | None = None

    def start(self, cb: Callable[[Record], Any]) -> MsptiResult:
        """Begin to collect. Returns INVALID_PARAMETER if ``cb`` can't be called."""
        if not _is_callback(cb, self.NAME):
            return INVALID_PARAMETER
        self._callback = cb
        return self._begin()

    def deliver(self, batch: Batch) -> None:
        if self._callback is not None:
            self._call(self._callback, self.records(batch))


class KernelMonitor(RecordMonitor[KernelData]):
    """Calls back for each kernel."""

    KIND = ActivityKind.Kernel
    NAME = "kernel"
    records = staticmethod(kernel_data)


class HcclMonitor(RecordMonitor[HcclData]):
    """Calls back for each Hccl record. MSPTI has them only with libmspti.so in LD_PRELOAD."""

    KIND = ActivityKind.Hccl
    NAME = "hccl"
    records = staticmethod(hccl_data)


class CommunicationMonitor(RecordMonitor[CommunicationData]):
    """Calls back for each communication operator."""

    KIND = ActivityKind.Communication
    NAME = "communication"
    records = staticmethod(communication_data)


def _ignore(data: object) -> None:
    """Do nothing: the default callback of MstxMonitor."""


class MstxMonitor(BaseMonitor):
    """Calls back for each instantaneous marker and for each finished range.

    Both may come from the host or from a device. A range on a device has the name and the
    domain of the range on the host with the same id.
    """

    KIND = ActivityKind.Marker
    NAME = "mstx"

    def __init__(self) -> None:
        self._mark_cb: Callable[[MarkerData], Any] = _ignore
        self._range_cb: Callable[[RangeMarkerData], Any] = _ignore
        self._pairing = MarkerPairing()

    def start(
        self,
        mark_cb: Callable[[MarkerData], Any] = _ignore,
        range_cb: Callable[[RangeMarkerData], Any] = _ignore,
    ) -> MsptiResult:
        """Begin to collect markers. Returns INVALID_PARAMETER if a callback can't be called."""
        if not (_is_callback(mark_cb, "mark") and _is_callback(range_cb, "range")):
            return INVALID_PARAMETER
        self._mark_cb, self._range_cb = mark_cb, range_cb
        self._pairing = MarkerPairing()
        return self._begin()

    def deliver(self, batch: Batch) -> None:
        markers = self._pairing.add(batch)
        if self._mark_cb is not _ignore:
            self._call(self._mark_cb, mark_data(batch))
        if self._range_cb is not _ignore:
            self._call(self._range_cb, range_data(markers))

    def enable_domain(self, name: str) -> int | MsptiResult:
        """Record the markers of a domain. Returns 0 or MSPTI's error code."""
        return _switch_domain(name, on=True)

    def disable_domain(self, name: str) -> int | MsptiResult:
        """Don't record the markers of a domain. Returns 0 or MSPTI's error code."""
        return _switch_domain(name, on=False)


def _switch_domain(name: str, on: bool) -> int | MsptiResult:
    if not isinstance(name, str) or not name:
        say("ERROR", "Domain name must be a non-empty string")
        return INVALID_PARAMETER

    def switch() -> None:
        mspti = load()
        (mspti.enable_marker_domain if on else mspti.disable_marker_domain)(name)

    code: int = result_of(switch).value
    return code


def _is_callback(callback: object, name: str) -> bool:
    if not callable(callback):
        say("ERROR", f"The {name} callback is not callable")
        return False
    return True
