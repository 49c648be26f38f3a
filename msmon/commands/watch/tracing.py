"""Traces of the ranks of a verdict: when one is taken, and what became of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msmon.bus.messages import Message, Reply, Selection, StatusRequest, TraceRequest
from msmon.bus.rows import AnswerRow
from msmon.bus.words import TraceAction, TraceState
from msmon.commands.asking.answers import sentence
from msmon.commands.nputrace.waiting import TraceResult, follow_traces
from msmon.commands.watch.notices import Notice, Told, TracedRank
from msmon.errors import MsmonError
from msmon.live.seen import SeenRank

STEPS = 2

DAY_S = 24 * 3600.0

LIMIT_S = 900.0
"""A trace that is not finished after so long is cancelled: the job may make no step at all."""

MOST_JOBS = 1000


@dataclass(frozen=True)
class Limits:
    """At most one trace of a job in ``every_s``, and ``per_day`` in 24 hours."""

    every_s: float = 1800.0
    per_day: int = 6


class TraceLimits:
    """Says when a job may be traced again. Belongs to one thread."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._taken: dict[str, deque[float]] = {}

    def refusal(self, job: str, now_s: float) -> str:
        """Return why a job is not traced at this moment of the monotonic clock, or nothing."""
        taken = [moment_s for moment_s in self._taken.get(job, ()) if now_s - moment_s < DAY_S]
        if len(taken) >= self._limits.per_day:
            return f"no trace: this job has had {len(taken)} within a day (--traces-per-day)"
        if taken and now_s - taken[-1] < self._limits.every_s:
            minutes = (now_s - taken[-1]) / 60
            return f"no trace: the last one of this job was {minutes:.0f} min ago (--trace-every)"
        return ""

    def take(self, job: str, now_s: float) -> None:
        """Count a trace."""
        taken = self._taken.pop(job, deque())
        self._taken[job] = taken
        taken.append(now_s)
        while now_s - taken[0] >= DAY_S:
            taken.popleft()
        while len(self._taken) > MOST_JOBS:
            del self._taken[next(iter(self._taken))]


@dataclass(frozen=True)
class TraceTask:
    """A trace to be taken for a verdict, of these processes."""

    notice: Notice
    processes: Sequence[SeenRank]

    @property
    def selection(self) -> Selection:
        """Its processes by pid, by rank and, where it has an id, by job: another host may have a
        process with the same pid."""
        jobs = {process.job for process in self.processes if process.job}
        return Selection(
            pids=sorted({process.pid for process in self.processes}),
            ranks=sorted({process.rank for process in self.processes}),
            job_ids=sorted(jobs),
        )


class Tracer:
    """Takes one trace at a time, on the thread of a delivery; it writes ``results``.

    ``request`` asks all daemons.
    """

    def __init__(
        self, request: Callable[[Message], Reply], directory: str, timeout_s: float = 10.0
    ) -> None:
        self.results: deque[tuple[Notice, tuple[TracedRank, ...]]] = deque()
        self._request = request
        self._directory = directory
        self._timeout_s = timeout_s
        self._ending = threading.Event()

    def send(self, item: TraceTask) -> str:
        """Take the trace and wait for its end; return why there is none, or nothing."""
        try:
            if item.notice.told is Told.PRESENT and self._has_been_traced(item):
                return "no trace: one was taken before this watch began"
            results = self._trace(item)
        except MsmonError as error:
            return sentence(f"no trace: {error}")
        if results:
            self.results.append((item.notice, tuple(results)))
        return ""

    def abort(self) -> None:
        """Wait no longer. The ranks finish what they have begun."""
        self._ending.set()

    def _has_been_traced(self, task: TraceTask) -> bool:
        rows = self._request(StatusRequest(task.selection)).status_rows
        return any(row.trace is not None and row.trace.state != TraceState.IDLE for row in rows)

    def _trace(self, task: TraceTask) -> list[TracedRank]:
        fields = {"iterations": STEPS, "log_file": self._directory}
        reply = self._request(
            TraceRequest(
                TraceAction.START,
                fields,
                task.selection,
                pause_monitor=True,
                timeout_s=self._timeout_s,
            )
        )
        until_s = time.monotonic() + LIMIT_S
        results = follow_traces(
            reply,
            self._request,
            lambda _: None,
            lambda: time.monotonic() < until_s and not self._ending.is_set(),
        )
        if self._ending.is_set():
            return []
        traced = [_traced(result) for result in results]
        missing = {process.rank: process for process in task.processes}
        for one in traced:
            missing.pop(one.rank, None)
        if missing and time.monotonic() >= until_s:
            self._request(TraceRequest(TraceAction.CANCEL, {}, task.selection))
        for process in missing.values():
            told = f"not finished after {LIMIT_S:.0f} s, and cancelled"
            text = told if time.monotonic() >= until_s else reply.text or "the process is gone"
            traced.append(TracedRank(process.rank, process.host, False, text))
        return traced


def _traced(result: TraceResult) -> TracedRank:
    rank = -1 if result.rank is None else result.rank
    text = sentence(result.text)
    if not isinstance(result, AnswerRow):
        return TracedRank(rank, "", result.ok, text)
    return TracedRank(rank, result.host, result.ok, text, tuple(result.files or ()))


def processes_of(ranks: Sequence[int], known: Mapping[int, SeenRank]) -> list[SeenRank]:
    """Return the processes of some ranks, as far as they are known."""
    return [known[rank] for rank in ranks if rank in known]
