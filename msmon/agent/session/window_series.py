"""The windows of one session: what was recorded per report interval, as statistics."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter

from msmon.agent.link.uplink import Uplink
from msmon.agent.session.step_times import StepTimes
from msmon.agent.session.wall_clock import WallClock
from msmon.agent.session.window_details import WindowDetails
from msmon.agent.steps.counter import StepCounter
from msmon.records.batch import Batch, Column
from msmon.records.statistics.window_statistics import WindowStatistics

SO_FAR_INTERVAL_S = 1.0
"""How often the daemon is told what the open window holds, if that takes next to no time."""

_SO_FAR_SHARE = 0.005
"""Part of the time that telling it may take: of a window that takes 10 ms every 2 s."""


class WindowSeries:
    """The window that is open, and the numbers of those before it; closed ones go to the uplink.

    Written by the collector's thread only. Windows begin and end at moments of ``clock``, so
    they follow each other without gap or overlap.
    """

    def __init__(
        self, session_id: str, uplink: Uplink, clock: WallClock, steps: StepCounter
    ) -> None:
        self.untimed: Counter[str] = Counter()
        """Records per kind name whose times are no times, in all windows closed so far."""
        self._session_id = session_id
        self._uplink = uplink
        self._clock = clock
        self._steps = steps
        self._statistics = WindowStatistics()
        self._details = WindowDetails()
        self._step_times = StepTimes(steps, clock.at_ns)
        self._index = 0
        self._start_s = time.monotonic()
        self._grown = False
        self._next_so_far_s = 0.0

    @property
    def evicted_ranges(self) -> int:
        """Ranges of markers given up before their end, because too many were open."""
        return self._statistics.evicted_ranges

    @property
    def open_ranges(self) -> int:
        """Ranges of markers that have a start and no end yet."""
        return self._statistics.open_ranges

    @property
    def waiting_markers(self) -> Column:
        """The markers that wait for others of their id; see ``MarkerPairing.waiting``."""
        return self._statistics.waiting_markers

    def look_at_devices(self, records: int) -> None:
        """See :meth:`WindowDetails.look_at_devices`."""
        self._details.look_at_devices(records)

    def begin(self) -> None:
        """Have the open window begin now: nothing was recorded before."""
        self._start_s = time.monotonic()
        self._step_times.begin()

    def end_s(self, interval_s: float) -> float:
        """Return when a window of this length is over, on the monotonic clock."""
        return self._start_s + interval_s

    def add(self, batch: Batch, received: int) -> None:
        """Take the records that the filter has kept of ``received`` ones."""
        self._grown = True
        durations = self._statistics.add(batch, received=received)
        if durations is not None:
            self._details.add(durations)

    def take_steps(self) -> None:
        """Take the steps that have ended, a few times per second."""
        self._details.add_steps(self._step_times.take())

    def tell_so_far(self, interval_s: float) -> None:
        """Leave for the daemon what the open window holds, in case this process is killed.

        Does nothing where that was done just now, the window is over soon, or it has not grown.
        """
        began_s = time.monotonic()
        ends_soon = self.end_s(interval_s) - began_s <= SO_FAR_INTERVAL_S
        if ends_soon or not self._grown or began_s < self._next_so_far_s:
            return
        if not self._uplink.wants_so_far:
            return
        start_ns, end_ns = self._clock.at_ns(self._start_s), self._clock.at_ns(began_s)
        window = self._statistics.so_far(self._index, start_ns, end_ns, self._steps.current)
        window = dataclasses.replace(window, **self._step_times.so_far())
        self._uplink.put_so_far(self._session_id, window)
        took_s = time.monotonic() - began_s
        self._next_so_far_s = began_s + max(SO_FAR_INTERVAL_S, took_s / _SO_FAR_SHARE)
        self._grown = False

    def close(self) -> None:
        """End the open window, begin the next, and queue the one that has ended."""
        now_s = time.monotonic()
        start_ns, end_ns = self._clock.at_ns(self._start_s), self._clock.at_ns(now_s)
        window = self._statistics.close(self._index, start_ns, end_ns, self._steps.current)
        self.take_steps()
        window = self._details.close(dataclasses.replace(window, **self._step_times.close()))
        self.untimed.update(window.untimed)
        self._index += 1
        self._start_s = now_s
        self._grown = False
        self._uplink.put_window(self._session_id, window)
        jump_ns = self._clock.follow()
        if jump_ns:
            self._uplink.put_note(self._session_id, "clock_jump_ns", str(jump_ns))
