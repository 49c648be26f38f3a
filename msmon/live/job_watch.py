"""One job that is watched: its windows in, events about its verdicts out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from msmon.insight.job import JobNames, JobWindow
from msmon.insight.judge import Judge
from msmon.insight.verdict import Abstained, Judgement, Verdict
from msmon.live.assembly import LEAST_SLOT_NS, JobAssembly
from msmon.live.seen import SeenWindow
from msmon.vocabulary import Vocabulary

ENDED_KEPT = 256
"""Verdicts of a job that are over and still listed."""

CHANGED_BY = 1.5
"""A verdict has changed when its effect or cost is so many times what was told last, or as many
times less, """

SETTLED_WINDOWS = 3
"""and has been so for so many windows: while the evidence grows, so does the cost."""

SETTLED_SHARE = 0.1
"""By how much it may differ from window to window meanwhile."""


class Change(Vocabulary):
    """What has become of a verdict."""

    BEGUN = "begun"
    CHANGED = "changed"
    CLEARED = "cleared"


@dataclass(frozen=True)
class VerdictEvent:
    """Something to tell about a verdict of a job; ``time_ns`` is the end of the window."""

    job: str
    change: Change
    verdict: Verdict
    time_ns: int


class JobWatch:
    """Judges a job while its windows come. Belongs to one thread."""

    def __init__(self, job: str, least_slot_ns: int = LEAST_SLOT_NS) -> None:
        self.job = job
        self.latest: JobWindow | None = None
        """The window that was judged last."""
        self.judgement = Judgement(())
        self.ended: deque[Verdict] = deque(maxlen=ENDED_KEPT)
        self.windows = 0
        """How many were judged."""
        self._assembly = JobAssembly(least_slot_ns)
        self._judge = Judge()
        self._names: JobNames = self._assembly.names
        self._told: dict[object, _Told] = {}

    @property
    def problems(self) -> list[str]:
        """What can't be judged for another reason than missing windows."""
        doubled = ", ".join(map(str, sorted(self._assembly.doubled)))
        if not doubled:
            return []
        return [
            f"two processes claim rank {doubled}; the one that started last is judged. If two jobs "
            "run here, give each a job id of its own"
        ]

    def add(self, seen: SeenWindow) -> None:
        """Take a window of one of its processes."""
        self._assembly.add(seen)

    def judge(self) -> Iterator[VerdictEvent]:
        """Judge what is complete, and yield what is to be told."""
        for window in self._assembly.ready():
            if window.names is not self._names:  # numbers stand for other names from here on
                self._judge, self._names = Judge(), window.names
            self.latest = window
            self.judgement = self._judge.add(window)
            self.windows += 1
            yield from self._events(window.end_ns)

    def _events(self, time_ns: int) -> Iterator[VerdictEvent]:
        for verdict in self.judgement.cleared:
            self._told.pop(verdict.key, None)
            self.ended.append(verdict)
            yield VerdictEvent(self.job, Change.CLEARED, verdict, time_ns)
        for verdict in self.judgement.verdicts:
            told = self._told.get(verdict.key)
            if told is None:
                self._told[verdict.key] = _Told(verdict, verdict)
                yield VerdictEvent(self.job, Change.BEGUN, verdict, time_ns)
            elif told.has_changed(verdict):
                self._told[verdict.key] = _Told(verdict, verdict)
                yield VerdictEvent(self.job, Change.CHANGED, verdict, time_ns)

    @property
    def abstained(self) -> tuple[Abstained, ...]:
        """Of whom nothing can be said, and why."""
        return self.judgement.abstained


@dataclass
class _Told:
    """What was told of a verdict last, and how it has been since. Written by its job's watch."""

    verdict: Verdict
    latest: Verdict
    settled: int = 0
    """Windows in which it was another one than was told, and stayed the same."""

    def has_changed(self, now: Verdict) -> bool:
        """Take the verdict of the next window; return whether it is to be told anew."""
        seen_anew = now != self.latest
        steady = not _differ(self.latest, now, 1 + SETTLED_SHARE)
        other = _differ(self.verdict, now, CHANGED_BY)
        self.settled = (self.settled + seen_anew if steady else 1) if other else 0
        self.latest = now
        return self.settled >= SETTLED_WINDOWS


def _differ(one: Verdict, other: Verdict, factor: float) -> bool:
    """Whether effect or cost of one is more than so many times that of the other."""
    pairs = [
        (one.effect - 1, other.effect - 1),
        ((one.cost_percent or 0.0) / 100, (other.cost_percent or 0.0) / 100),
    ]
    return any(max(pair) > max(0.01, factor * min(pair)) for pair in pairs)
