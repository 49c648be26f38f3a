"""The step counter. A step costs the training loop one addition and one look at the clock."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_STEP = 2**53
"""Largest number that a job may give: one that every reader of JSON and SQL still counts from."""

_RATE_SPAN_S = 1.0
"""The mean time of a step is taken over at least so long, where there are steps."""


class StepCounter:
    """Counts training steps. Any thread may read it.

    Written by the thread that trains (here, and in ``lifecycle.step``, which repeats
    :meth:`advance` to save a call), except ``at_boundary`` (the tracer) and what
    :meth:`measure` writes (the link's thread).

    ``at_boundary``, where set, is called on the training thread after each step that was
    counted. ``explicit``: the job calls ``msmon.step()``, so steps seen by hooks don't count.
    ``step_s``: mean seconds per step, 0 when unknown; see :meth:`measure`.
    """

    __slots__ = (
        *("at_boundary", "count", "explicit", "last_monotonic_s"),
        *("_base_count", "_base_s", "_hooked", "step_s"),
    )

    def __init__(self) -> None:
        self.count = 0
        self.last_monotonic_s = 0.0
        self.explicit = False
        self.at_boundary: Callable[[], None] | None = None
        self._hooked = False
        self._base_count, self._base_s, self.step_s = 0, 0.0, 0.0

    def advance(self) -> None:
        """Note that a step has ended."""
        self.count += 1
        self.last_monotonic_s = time.monotonic()
        at_boundary = self.at_boundary  # read once: a cancelled trace removes it meanwhile
        if at_boundary is not None:
            at_boundary()

    def advance_explicitly(self) -> None:
        """Note the first step that the job itself reports; a hook may have counted it already."""
        self.explicit = True
        if not self._hooked:
            self.advance()

    def advance_by_hook(self, steps: int) -> None:
        """Note that a framework has made steps, unless the job counts itself."""
        if self.explicit:
            return
        self._hooked = True
        self.count += steps - 1
        self.advance()

    def forget(self) -> None:
        """Begin anew in a forked child: the steps so far were its parent's."""
        self.count, self.last_monotonic_s = 0, 0.0
        self.explicit = self._hooked = False
        self._base_count, self._base_s, self.step_s = 0, 0.0, 0.0

    def set(self, count: int) -> None:
        """Note that so many steps have been made, say before a checkpoint was loaded."""
        self.count = count

    @property
    def current(self) -> int:
        """Steps so far; -1 when none was seen."""
        return self.count or -1

    @property
    def age_s(self) -> float:
        """Seconds since the last step; -1 when none was seen."""
        return time.monotonic() - self.last_monotonic_s if self.last_monotonic_s else -1.0

    def measure(self) -> None:
        """Update ``step_s``, the mean time of the latest steps. Called with each heartbeat."""
        count, last_s = self.count, self.last_monotonic_s
        steps, span_s = count - self._base_count, last_s - self._base_s
        if self._base_s and steps > 0 and span_s > 0:
            self.step_s = span_s / steps
        if not self._base_s or steps < 0 or span_s > _RATE_SPAN_S:
            self._base_count, self._base_s = count, last_s
