"""The step counter. A step costs the training loop one addition and one look at the clock."""

from __future__ import annotations

import contextlib
import enum
import time
from collections import deque
from collections.abc import Callable

MAX_STEP = 2**53
"""Largest number that a job may give: one that every reader of JSON and SQL still counts from."""

MOST_ENDED = 4096
"""Steps whose ends are kept for the next window; of more, the latest."""

_RATE_SPAN_S = 1.0
"""The mean time of a step is taken over at least so long, where there are steps."""


class Source(enum.IntEnum):
    """Who tells of steps. The highest one that has told of any counts, and the others don't."""

    NONE = 0
    REPORT = 1
    """A framework reports its own number now and then."""
    WORKER = 2
    """A worker that serves has computed the whole model once."""
    OPTIMIZER = 3
    FRAMEWORK = 4
    """The job calls ``step()`` of a framework's dynamic profiler."""
    JOB = 5
    """The job calls ``msmon.step()``."""


class StepCounter:
    """Counts training steps. Any thread may read it.

    Written by the thread that trains (here, and in ``lifecycle.step``, which repeats
    :meth:`advance` to save a call), except ``at_boundary`` (the tracer) and what
    :meth:`measure` writes (the link's thread).

    ``at_boundary``, where set, is called on the training thread after each step that was
    counted. ``explicit``: the job calls ``msmon.step()``, so nothing else counts. ``counts``:
    what is counted as a step, for people; empty before the first.
    ``step_s``: mean seconds per step, 0 when unknown; see :meth:`measure`. ``ended``: the latest
    steps, each as (steps so far, monotonic seconds), for whoever measures them. 0 seconds: the
    number was set, so the steps since the entry before are none.
    """

    __slots__ = (
        *("at_boundary", "count", "counts", "ended", "explicit", "last_monotonic_s"),
        *("_base_count", "_base_s", "_source", "step_s"),
    )

    def __init__(self) -> None:
        self.count = 0
        self.counts = ""
        self.last_monotonic_s = 0.0
        self.explicit = False
        self.ended: deque[tuple[int, float]] = deque(maxlen=MOST_ENDED)
        self.at_boundary: Callable[[], None] | None = None
        self._source = Source.NONE
        self._base_count, self._base_s, self.step_s = 0, 0.0, 0.0

    def advance(self) -> None:
        """Note that a step has ended."""
        self.count += 1
        self.last_monotonic_s = now_s = time.monotonic()
        self.ended.append((self.count, now_s))
        at_boundary = self.at_boundary  # read once: a cancelled trace removes it meanwhile
        if at_boundary is not None:
            at_boundary()

    def advance_explicitly(self) -> None:
        """Note the first step that the job itself reports."""
        self.explicit = True
        self.advance_by(Source.JOB, 1, "calls of msmon.step()")

    def advance_by(self, source: Source, steps: int, what: str) -> None:
        """Note that steps have ended, unless a higher source tells of steps.

        ``what`` is counted as a step. The first step of a source is not counted where a lower
        one has told of some: it has counted that step already.
        """
        if source < self._source:
            return
        self.counts = what
        counted_already = self._source not in (Source.NONE, source)
        self._source = source
        steps -= counted_already
        if steps > 0:
            self.count += steps - 1
            self.advance()

    def report(self, count: int, what: str) -> None:
        """Take a framework's own number of steps, where nobody tells of each step."""
        if count > self.count:
            self.advance_by(Source.REPORT, count - self.count, what)

    def forget(self) -> None:
        """Begin anew in a forked child: the steps so far were its parent's."""
        self.count, self.last_monotonic_s = 0, 0.0
        self.explicit, self.counts, self._source = False, "", Source.NONE
        self.ended.clear()
        self._base_count, self._base_s, self.step_s = 0, 0.0, 0.0

    def set(self, count: int) -> None:
        """Note that so many steps have been made, say before a checkpoint was loaded."""
        self.count = count
        self.ended.append((count, 0.0))

    @property
    def current(self) -> int:
        """Steps so far; -1 when none was seen."""
        return self.count or -1

    @property
    def age_s(self) -> float:
        """Seconds since the last step; -1 when none was seen."""
        return time.monotonic() - self.last_monotonic_s if self.last_monotonic_s else -1.0

    def take_ended(self) -> list[tuple[int, float]]:
        """Return the steps that have ended since the last call, the latest ``MOST_ENDED``.

        Called by the collector's thread only.
        """
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self.ended.popleft())
        return taken

    def measure(self) -> None:
        """Update ``step_s``, the mean time of the latest steps. Called with each heartbeat."""
        count, last_s = self.count, self.last_monotonic_s
        steps, span_s = count - self._base_count, last_s - self._base_s
        if self._base_s and steps > 0 and span_s > 0:
            self.step_s = span_s / steps
        if not self._base_s or steps < 0 or span_s > _RATE_SPAN_S:
            self._base_count, self._base_s = count, last_s
