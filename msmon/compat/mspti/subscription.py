"""The MSPTI subscription that all ``mspti`` monitors of a process share.

They must share one, because MSPTI allows a process only one subscriber.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

from msmon.compat.mspti.enums import MsptiResult
from msmon.errors import CommandRefused, MsmonError, MsptiError
from msmon.recording.recording import Recording
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.threads import Lock

SUCCESS = MsptiResult.MSPTI_SUCCESS


class Listener(Protocol):
    """A monitor. ``deliver`` gets every batch of ``KIND``, on the recording thread."""

    KIND: ActivityKind

    def deliver(self, batch: Batch) -> None: ...


def say(level: str, text: str) -> None:
    """Print one line in the format of the ``mspti`` package, with the time in UTC."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    line = text.replace("\n", "; ")
    print(f"{stamp} [{level}] [MSPTI] [{os.getpid()}]: {line}", flush=True)


def result_of(action: Callable[[], object]) -> MsptiResult:
    """Run an action, and return the result code that stands for its error."""
    try:
        action()
    except MsptiError as error:
        say("ERROR", str(error))
        known = {item.value for item in MsptiResult}
        return MsptiResult(error.result if error.result in known else 999)
    except CommandRefused as error:
        say("ERROR", str(error))
        return MsptiResult.MSPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
    except MsmonError as error:
        say("ERROR", str(error))
        return MsptiResult.MSPTI_ERROR_INNER
    return SUCCESS


class Subscription:
    """Starts the recording for the first user, stops it after the last.

    Any thread may call it. The lock guards the attributes only; it is not held during calls
    of MSPTI or of a callback, because those may call this class again.
    """

    def __init__(self) -> None:
        self._recording = Recording("an mspti monitor", self._deliver)
        self._lock = Lock()
        self._users = 0
        self._monitors: list[Listener] = []

    def open(self) -> MsptiResult:
        """Count one user more. The first one subscribes."""
        if not self._recording.active:
            result = result_of(lambda: self._recording.start(frozenset()))
            if result is not SUCCESS:
                return result
            with self._lock:
                self._users = 0
                self._monitors = []
        with self._lock:
            self._users += 1
        return SUCCESS

    def close(self) -> MsptiResult:
        """Count one user less. The last one unsubscribes."""
        with self._lock:
            self._users = max(0, self._users - 1)
            last = self._users == 0
        return result_of(self._recording.stop) if last else SUCCESS

    def add(self, monitor: Listener) -> MsptiResult:
        """Enable the kind of a monitor, and deliver its batches from now on."""
        with self._lock:
            self._monitors.append(monitor)
        kind = monitor.KIND
        result = result_of(lambda: self._recording.call(lambda recorder: recorder.enable(kind)))
        if result is not SUCCESS:
            self._forget(monitor)
        return result

    def remove(self, monitor: Listener) -> MsptiResult:
        """Deliver what was recorded so far, then disable the kind if no other monitor wants it."""
        result = self.flush()
        self._forget(monitor)
        with self._lock:
            wanted = frozenset(item.KIND for item in self._monitors)
        change = result_of(
            lambda: self._recording.call(lambda recorder: recorder.change_kinds(wanted))
        )
        return result if result is not SUCCESS else change

    def holds(self, monitor: Listener) -> bool:
        """Return whether the monitor gets batches."""
        with self._lock:
            return monitor in self._monitors and self._recording.active

    def flush(self) -> MsptiResult:
        """Deliver everything recorded so far."""
        return result_of(self._recording.flush) if self._recording.active else SUCCESS

    def set_flush_interval(self, seconds: float) -> None:
        """Set the time between deliveries."""
        self._recording.flush_interval_s = seconds

    def _forget(self, monitor: Listener) -> None:
        with self._lock:
            self._monitors = [item for item in self._monitors if item is not monitor]

    def _deliver(self, batches: list[Batch]) -> None:
        for batch in batches:
            with self._lock:
                monitors = [item for item in self._monitors if item.KIND is batch.kind]
            for monitor in monitors:
                monitor.deliver(batch)
