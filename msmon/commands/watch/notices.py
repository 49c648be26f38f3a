"""Which verdicts are to be told, and what is told of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from msmon.insight.verdict import Verdict
from msmon.live.job_watch import Change, VerdictEvent
from msmon.vocabulary import Vocabulary


class Told(Vocabulary):
    """What a notice says of its verdict."""

    PRESENT = "present"
    """It held already when the watching began."""
    BEGUN = "begun"
    CHANGED = "changed"
    CLEARED = "cleared"
    TRACED = "traced"
    """Its trace has been taken, or could not be."""


@dataclass(frozen=True)
class TracedRank:
    """What became of the trace in one process. ``files`` are paths on its host."""

    rank: int
    host: str
    ok: bool
    text: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Notice:
    """Something to tell of a verdict. ``time_ns`` is the end of the window that shows it.

    ``acts``: somebody is called; else it is only printed.
    """

    job: str
    told: Told
    verdict: Verdict
    time_ns: int
    acts: bool = True
    trace: tuple[TracedRank, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as JSON has it, and what has become of it."""
        return {
            "change": str(self.told),
            "job": self.job,
            "time_ns": self.time_ns,
            **self.verdict.as_json(),
            "trace": [dataclasses.asdict(one) for one in self.trace],
        }


class Teller:
    """Decides what is told of the verdicts of all jobs. Belongs to one thread.

    What costs too little to alert anybody is told with ``minor`` only, and acts never. A verdict
    that begins to cost enough is told as begun then, and to its end from there on.
    """

    def __init__(self, minor: bool = False) -> None:
        self._minor = minor
        self._told: dict[str, dict[object, Verdict]] = {}
        """Job → key of each verdict that was told and holds → as it was told."""
        self._acting: set[tuple[str, object]] = set()

    def first_look(self, job: str, present: Iterable[Verdict], time_ns: int) -> Iterator[Notice]:
        """Yield what holds for a job when the watching begins; what is over is not told."""
        yield from self._new(job, present, Told.PRESENT, time_ns)

    def take(
        self, job: str, events: Sequence[VerdictEvent], present: Sequence[Verdict], time_ns: int
    ) -> Iterator[Notice]:
        """Yield what is to be told after some windows of a job.

        ``present`` is what holds after them. Of a verdict that came and went between two looks both
        are told.
        """
        known = self._told.setdefault(job, {})
        changed = set()
        for event in events:
            verdict = event.verdict
            if event.change is Change.CHANGED:
                changed.add(verdict.key)
            elif event.change is Change.CLEARED:
                if verdict.key not in known:
                    yield from self._new(job, [verdict], Told.BEGUN, verdict.since_ns)
                yield from self._end(job, verdict, event.time_ns)
        before = set(known)
        yield from self._new(job, present, Told.BEGUN, time_ns)
        for verdict in present:
            if verdict.key in changed & before:
                known[verdict.key] = verdict
                yield self._notice(job, Told.CHANGED, verdict, time_ns)
        held = {verdict.key for verdict in present}
        for key, verdict in list(known.items()):  # those of which no end was told
            if key not in held:
                ended = dataclasses.replace(verdict, until_ns=time_ns)
                yield from self._end(job, ended, time_ns)

    def forget(self, job: str) -> None:
        """Forget a job that is not watched any more."""
        self._acting -= {(job, key) for key in self._told.pop(job, {})}

    def _new(
        self, job: str, present: Iterable[Verdict], told: Told, time_ns: int
    ) -> Iterator[Notice]:
        known = self._told.setdefault(job, {})
        for verdict in present:
            becomes_serious = verdict.alerts and (job, verdict.key) not in self._acting
            if becomes_serious or (self._minor and verdict.key not in known):
                known[verdict.key] = verdict
                if verdict.alerts:
                    self._acting.add((job, verdict.key))
                yield self._notice(job, told, verdict, time_ns)

    def _end(self, job: str, verdict: Verdict, time_ns: int) -> Iterator[Notice]:
        if self._told[job].pop(verdict.key, None) is not None:
            yield self._notice(job, Told.CLEARED, verdict, time_ns)
            self._acting.discard((job, verdict.key))

    def _notice(self, job: str, told: Told, verdict: Verdict, time_ns: int) -> Notice:
        return Notice(job, told, verdict, time_ns, (job, verdict.key) in self._acting)


@dataclass(frozen=True)
class Note:
    """Something to tell that is no verdict: what can't be seen, or an action that failed.

    ``about`` is "job 4711", "daemon node3" or the option of an action; empty: the whole watch.
    """

    about: str
    text: str
    time_ns: Optional[int] = None
