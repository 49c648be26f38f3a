"""All jobs that the daemons asked know of, each judged for itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msmon.live.assembly import LEAST_SLOT_NS
from msmon.live.job_watch import JobWatch, VerdictEvent
from msmon.live.seen import SeenRank, SeenWindow

MOST_JOBS = 1000
"""Jobs that are watched; of more, the one that has been silent longest is given up."""


class Watcher:
    """Belongs to one thread. Windows shorter than ``least_slot_ns`` are put together."""

    def __init__(self, least_slot_ns: int = LEAST_SLOT_NS) -> None:
        self._least_slot_ns = least_slot_ns
        self.jobs: dict[str, JobWatch] = {}
        """By job; the one that has told something last is the last one."""

    def take(self, windows: Iterable[SeenWindow]) -> Iterator[VerdictEvent]:
        """Take what the daemons have told since last time, and yield what is to be told of it."""
        touched: dict[str, JobWatch] = {}
        for seen in windows:
            job = job_of(seen.process)
            watch = self.jobs.pop(job, None) or JobWatch(job, self._least_slot_ns)
            self.jobs[job] = touched[job] = watch
            watch.add(seen)
        while len(self.jobs) > MOST_JOBS:
            del self.jobs[next(iter(self.jobs))]
        for watch in touched.values():
            yield from watch.judge()


def job_of(process: SeenRank) -> str:
    """Return what names the job of a process.

    Without a job id the processes of one host are taken for one job: nothing tells which processes
    of other hosts belong to them.
    """
    return process.job or f"host {process.host}"
