"""How long the steps of a window took, by the calls that ended them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msmon.agent.session.collective_calls import StepSpan
from msmon.agent.steps.counter import StepCounter


@dataclass
class _Sum:
    """The steps of the open window."""

    count: int = 0
    total_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0

    def add(self, count: int, lasted_ns: int) -> None:
        """Add steps that took so long together."""
        each_ns = lasted_ns // count
        self.min_ns = min(self.min_ns, each_ns) if self.count else each_ns
        self.max_ns = max(self.max_ns, each_ns)
        self.count += count
        self.total_ns += lasted_ns


class StepTimes:
    """Takes what the counter has noted. Written by the collector's thread only.

    A step lasts from the end of the one before, so how long the first one took is not known. A
    framework that tells of several steps at once gives their mean. ``at_ns`` turns a moment of the
    monotonic clock into wall clock time.
    """

    def __init__(self, counter: StepCounter, at_ns: Callable[[float], int]) -> None:
        self._counter = counter
        self._at_ns = at_ns
        self._last: tuple[int, float] | None = None
        """The step that has ended last, and when on the monotonic clock."""
        self._sum = _Sum()

    def begin(self) -> None:
        """Forget what was before: nothing was recorded then."""
        self._counter.take_ended()
        self._last = None
        self._sum = _Sum()

    def take(self) -> list[StepSpan]:
        """Add the steps that have ended since the last call, and return those known one by one.

        It is to be called a few times per second: the counter keeps the latest steps only.
        """
        spans = []
        for number, ended_s in self._counter.take_ended():
            before, self._last = self._last, (number, ended_s) if ended_s else None
            if before is None or not ended_s or number <= before[0]:
                continue
            start_ns, end_ns = self._at_ns(before[1]), self._at_ns(ended_s)
            self._sum.add(number - before[0], end_ns - start_ns)
            if number == before[0] + 1:
                spans.append(StepSpan(number, start_ns, end_ns))
        return spans

    def so_far(self) -> dict[str, Any]:
        """Return the fields of a window's header that tell of steps."""
        added = self._sum
        return {
            "steps": added.count,
            "step_total_ns": added.total_ns,
            "step_min_ns": added.min_ns,
            "step_max_ns": added.max_ns,
        }

    def close(self) -> dict[str, Any]:
        """Return the same, and begin anew; the next step still lasts from the end of the last."""
        fields, self._sum = self.so_far(), _Sum()
        return fields
