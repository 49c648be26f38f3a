"""The windows of one session: what was recorded per report interval, as statistics."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter

from msmon.agent.link.uplink import Uplink
from msmon.agent.session.collective_calls import StepSpan
from msmon.agent.session.wall_clock import WallClock
from msmon.agent.session.window_details import WindowDetails
from msmon.agent.steps.counter import StepCounter
from msmon.records.batch import Batch, Column
from msmon.records.statistics.window_statistics import WindowStatistics
from msmon.records.windows import Window

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
        self._last_step: tuple[int, float] | None = None
        """The step that has ended last, and when on the monotonic clock."""
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
        self._steps.take_ended()
        self._last_step = None

    def end_s(self, interval_s: float) -> float:
        """Return when a window of this length is over, on the monotonic clock."""
        return self._start_s + interval_s

    def add(self, batch: Batch, received: int) -> None:
        """Take the records that the filter has kept of ``received`` ones."""
        self._grown = True
        durations = self._statistics.add(batch, received=received)
        if durations is not None:
            self._details.add(durations)

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
        self._uplink.put_so_far(self._session_id, window)
        took_s = time.monotonic() - began_s
        self._next_so_far_s = began_s + max(SO_FAR_INTERVAL_S, took_s / _SO_FAR_SHARE)
        self._grown = False

    def close(self) -> None:
        """End the open window, begin the next, and queue the one that has ended."""
        now_s = time.monotonic()
        start_ns, end_ns = self._clock.at_ns(self._start_s), self._clock.at_ns(now_s)
        window = self._statistics.close(self._index, start_ns, end_ns, self._steps.current)
        window = self._details.close(self._with_steps(window))
        self.untimed.update(window.untimed)
        self._index += 1
        self._start_s = now_s
        self._grown = False
        self._uplink.put_window(self._session_id, window)
        jump_ns = self._clock.follow()
        if jump_ns:
            self._uplink.put_note(self._session_id, "clock_jump_ns", str(jump_ns))

    def _with_steps(self, window: Window) -> Window:
        """Return the window with the steps that have ended in it, as far as their time is known.

        A step lasts from the end of the one before. So the first one of a session is not known, and
        none around a call of ``msmon.set_step()``.
        """
        spans = []
        for number, ended_s in self._steps.take_ended():
            before, self._last_step = self._last_step, (number, ended_s)
            if before is not None and number == before[0] + 1:
                spans.append(
                    StepSpan(number, self._clock.at_ns(before[1]), self._clock.at_ns(ended_s))
                )
        self._details.add_steps(spans)
        lasted_ns = [max(0, span.end_ns - span.start_ns) for span in spans]
        return dataclasses.replace(
            window,
            steps=len(lasted_ns),
            step_total_ns=sum(lasted_ns),
            step_min_ns=min(lasted_ns, default=0),
            step_max_ns=max(lasted_ns, default=0),
        )
