"""Watching: round after round it asks, judges, tells and acts."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Protocol

from msmon.commands.watch.chosen_ranks import ranks_to_trace
from msmon.commands.watch.delivery import Delivery
from msmon.commands.watch.notices import Note, Notice, Teller, Told, TracedRank
from msmon.commands.watch.printing import Printer
from msmon.commands.watch.registered import Registered
from msmon.commands.watch.sight import Changes, JobSight
from msmon.commands.watch.tracing import TraceLimits, Tracer, TraceTask, processes_of
from msmon.live.job_watch import VerdictEvent
from msmon.live.seen import SeenRank, SeenWindow
from msmon.live.watcher import Watcher, job_of

ROUND_S = 1.0

FIRST_ANSWERS_S = 15.0
"""How long the first round waits for daemons that say neither yes nor no."""

SILENT_S = 120.0
"""A job of which nothing has come for so long is told to be silent."""


class Source(Protocol):
    """Where windows come from: a :class:`Feed <msmon.live.feed.Feed>`."""

    @property
    def problems(self) -> dict[str, str]:
        """Daemon → why it can't be asked at the moment."""

    def poll(self) -> list[SeenWindow]:
        """Return what has come since the last call."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until something has come."""

    def wait_for_all(self, timeout_s: float) -> bool:
        """Wait until each daemon has told all that it has, or can't be asked."""


@dataclass
class Tracing:
    """The part that takes traces."""

    tracer: Tracer
    delivery: Delivery[TraceTask]
    limits: TraceLimits


@dataclass
class _Job:
    """What the watch knows of a job beside its verdicts."""

    sight: JobSight = field(default_factory=JobSight)
    ranks: dict[int, SeenRank] = field(default_factory=dict)
    traces: dict[object, tuple[TracedRank, ...]] = field(default_factory=dict)
    """Key of a verdict that holds → its trace."""
    heard_s: float = 0.0
    """When a window of it came last, monotonic clock."""


class Watch:
    """Belongs to the main thread. ``documents``: each takes a notice as JSON."""

    def __init__(
        self,
        source: Source,
        printer: Printer,
        minor: bool,
        registered: Registered,
        documents: Sequence[Delivery[bytes]] = (),
        tracing: Optional[Tracing] = None,
    ) -> None:
        self._source = source
        self._printer = printer
        self._registered = registered
        self._documents = documents
        self._tracing = tracing
        self._watcher = Watcher()
        self._teller = Teller(minor)
        self._jobs: dict[str, _Job] = {}
        self._daemons = Changes()
        self._silent = Changes()

    def run(self, is_over: Callable[[], bool]) -> None:
        """Watch until ``is_over`` says so; it is asked once a second."""
        until_s = time.monotonic() + FIRST_ANSWERS_S
        while not is_over() and not self._source.wait_for_all(ROUND_S):
            if time.monotonic() > until_s:
                break
        self.round(first=True)
        while not is_over():
            self._source.wait(ROUND_S)
            self.round()

    def round(self, first: bool = False) -> None:
        """Take what has come, and tell what is new. The first one tells what holds already."""
        windows = self._source.poll()
        for seen in windows:
            self._hear(seen)
        events: dict[str, list[VerdictEvent]] = {}
        for event in self._watcher.take(windows):
            events.setdefault(event.job, []).append(event)
        for job in {job_of(seen.process) for seen in windows} & self._watcher.jobs.keys():
            self._judged(job, events.get(job, []), first)
        for name in self._jobs.keys() - self._watcher.jobs.keys():
            del self._jobs[name]
            self._teller.forget(name)
        self._traced()
        for note in self._notes():
            self._printer.note(note)

    def _hear(self, seen: SeenWindow) -> None:
        job = self._jobs.setdefault(job_of(seen.process), _Job())
        job.heard_s = time.monotonic()
        process = seen.process
        if process.start_time >= job.ranks.get(process.rank, process).start_time:
            job.ranks[process.rank] = process

    def _judged(self, name: str, events: list[VerdictEvent], first: bool) -> None:
        watch = self._watcher.jobs[name]
        time_ns = watch.latest.end_ns if watch.latest is not None else time.time_ns()
        present = watch.judgement.verdicts
        if first:
            notices = self._teller.first_look(name, present, time_ns)
        else:
            notices = self._teller.take(name, events, present, time_ns)
        for notice in notices:
            self._tell(notice)
        for text in self._jobs[name].sight.take(watch):
            self._printer.note(Note(f"job {name}", text, time_ns))

    def _tell(self, notice: Notice) -> None:
        job = self._jobs[notice.job]
        if notice.told is Told.CLEARED:
            trace = job.traces.pop(notice.verdict.key, ())
            notice = dataclasses.replace(notice, trace=trace)
        self._printer.notice(notice)
        if notice.acts:
            document = json.dumps(notice.as_json()).encode()
            for delivery in self._documents:
                delivery.give(document)
            if notice.told in (Told.BEGUN, Told.PRESENT):
                self._have_traced(notice)

    def _have_traced(self, notice: Notice) -> None:
        if self._tracing is None:
            return
        name, now_s = notice.job, time.monotonic()
        ranks = ranks_to_trace(notice.verdict, self._watcher.jobs[name].latest)
        processes = processes_of(ranks, self._jobs[name].ranks)
        if not processes:
            return
        refusal = self._tracing.limits.refusal(name, now_s)
        if refusal:
            self._printer.note(Note(f"job {name}", refusal))
            return
        self._tracing.limits.take(name, now_s)
        self._tracing.delivery.give(TraceTask(notice, processes))

    def _traced(self) -> None:
        """Tell of the traces that are finished."""
        while self._tracing is not None and self._tracing.tracer.results:
            begun, trace = self._tracing.tracer.results.popleft()
            if begun.job in self._jobs:
                self._jobs[begun.job].traces[begun.verdict.key] = trace
                self._tell(
                    Notice(begun.job, Told.TRACED, begun.verdict, time.time_ns(), True, trace)
                )

    def _notes(self) -> Iterator[Note]:
        """Yield what is to be told beside verdicts."""
        problems = self._source.problems  # one for each daemon, whatever the reason turns into
        for daemon, gone in self._daemons.take(dict.fromkeys(problems, "gone")):
            about = f"daemon {daemon}" if daemon else "daemon"
            yield Note(
                about, f"can't be asked: {problems[daemon]}" if gone else "can be asked again"
            )
        now_s = time.monotonic()
        silent = {
            name: f"nothing has come from it for {SILENT_S / 60:.0f} min: it has ended, or it is "
            "not monitored any more; its verdicts stand as they were"
            for name, job in self._jobs.items()
            if now_s - job.heard_s > SILENT_S
        }
        for name, text in self._silent.take(silent):
            yield Note(f"job {name}", text or "it is heard of again")
        for name, text in self._registered.news():
            yield Note(f"job {name}", text)
        deliveries: list[Delivery[Any]] = [*self._documents]
        if self._tracing is not None:
            deliveries.append(self._tracing.delivery)
        for delivery in deliveries:
            for text in delivery.news():
                yield Note(delivery.name, text)
