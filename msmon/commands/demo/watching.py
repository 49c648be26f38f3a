"""The verdicts of ``msmon demo``: its windows are judged as those of a real job are."""

from __future__ import annotations

from collections.abc import Iterator

from msmon.commands.demo.totals import MergedWindows, Totals
from msmon.insight.verdict import Verdict
from msmon.live.feed import Feed
from msmon.live.watcher import Watcher

FEWEST_WINDOWS = 4
"""A fault must show in several windows."""

LAST_WINDOWS_S = 3.0
"""How long the windows of the stop may take to come."""


class DemoWatch:
    """Belongs to one thread. ``window_ns``: how long a window is."""

    def __init__(self, feed: Feed, window_ns: int) -> None:
        self._feed = feed
        self._merged = MergedWindows()
        self._watcher = Watcher(window_ns)

    def take(self) -> None:
        """Take the windows that have come."""
        seen = self._feed.poll()
        for item in seen:
            self._merged.add(item.process.rank, item.window)
        for _ in self._watcher.take(seen):
            pass  # the end tells what holds

    def take_the_rest(self) -> None:
        """Take the last windows, which a stop has closed."""
        while self._feed.wait(LAST_WINDOWS_S):
            self.take()

    def totals(self) -> Totals:
        """Return the operators of each rank since the start."""
        return self._merged.totals()

    @property
    def slow_ranks(self) -> set[int]:
        """The ranks that are to blame for something."""
        return {rank for verdict in self._verdicts() for rank in verdict.ranks}

    def verdict_lines(self) -> Iterator[str]:
        """Yield what the engine says."""
        verdicts = list(self._verdicts())
        windows = max((job.windows for job in self._watcher.jobs.values()), default=0)
        ranks = len(self._merged.totals())
        if ranks < 2:
            yield "One rank has nobody to be compared with. With --ranks 2 or more, one is slow."
        elif verdicts:
            for verdict in verdicts:
                yield verdict.text
                yield from (f"  {line}" for line in verdict.evidence)
        elif windows < FEWEST_WINDOWS:
            yield "That was too short for a verdict; give it --seconds 10."
        else:
            yield "No rank is to blame for anything."

    def _verdicts(self) -> Iterator[Verdict]:
        for job in self._watcher.jobs.values():
            yield from (one for one in job.judgement.verdicts if one.alerts)
