"""Which full buffers are read now, and which wait until the daemon has made room."""

from __future__ import annotations

import time
from collections.abc import Callable

from msmon.agent.link.uplink import Uplink
from msmon.agent.session.intake import Intake
from msmon.recording.recorder import Recorder
from msmon.threads import sleep

_POLL_S = 0.01
_WITH_TEXTS = 1.5
"""How much larger than a buffer its records may be with their texts, which lie outside of it."""


class Patience:
    """Leaves full buffers where they are while their records would find no room in the uplink.

    Example: the training holds the GIL for 6 s, and 20 buffers are full afterwards. The uplink
    has room for seven of them. The others wait in the arena, and nothing is lost.

    Written by the collector's thread only. ``on_held_back`` is called when a buffer can't be read
    without a loss.
    """

    def __init__(
        self,
        intake: Intake,
        recorder: Recorder,
        uplink: Uplink,
        on_held_back: Callable[[], None],
    ) -> None:
        self.held_back = False
        """Whether a buffer was left unread. Who looks for buffers sets it back before."""
        self._intake = intake
        self._recorder = recorder
        self._uplink = uplink
        self._on_held_back = on_held_back

    def may_take(self, size_bytes: int) -> bool:
        """Whether to read a full buffer of this size now.

        MSPTI must find free buffers, and windows want all records. So where few buffers are free,
        it is read all the same. What finds no room then is counted.
        """
        if self._has_room(size_bytes):
            return True
        self._on_held_back()
        self.held_back = self._recorder.has_spare_slots
        return not self.held_back

    def _has_room(self, size_bytes: int) -> bool:
        return self._intake.has_room(int(size_bytes * _WITH_TEXTS))

    def until_room(self, limit_s: float) -> Callable[[int], bool]:
        """Return what waits before each buffer until its records find room, and returns True.

        All buffers together wait no longer than the limit, and none while there is no daemon.
        """
        deadline_s = time.monotonic() + limit_s

        def wait(size_bytes: int) -> bool:
            while not self._has_room(size_bytes):
                if time.monotonic() >= deadline_s or not self._uplink.connected:
                    break
                sleep(_POLL_S)
            return True

        return wait
