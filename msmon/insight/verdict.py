"""A verdict: which ranks, why, since when, what it costs, and what to do next."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Optional

from msmon.vocabulary import Vocabulary

ALERT_PERCENT = 1.0
"""What costs less of a step is listed, and nobody is alerted."""


class Fault(Vocabulary):
    """What is wrong."""

    SLOW_DEVICE = "slow-device"
    """A rank needs longer than its peers for the same kernels, and the others wait for it."""
    SLOW_HOST = "slow-host"
    """A rank comes late though its kernels are as fast as those of its peers: its device idles."""
    SLOW_LINK = "slow-link"
    """A group needs longer than others for the same collective."""
    UNEVEN_DATA = "uneven-data"
    """Ranks wait for each other in turn, because the work differs from step to step."""
    STAGE_IMBALANCE = "stage-imbalance"
    """A stage of the pipeline has more work than the others."""
    DEGRADED = "degraded"
    """All of the job has become slower."""
    HANG = "hang"
    """The job stands still."""


@dataclass(frozen=True)
class Verdict:
    """One finding. ``cost_percent`` is of every step, None where it can't be told.

    ``ranks`` are those to blame; with a stage or with data nobody is, and ``position`` or ``group``
    says where it is. ``until_ns`` is None while it goes on. ``text`` is a sentence, ``evidence``
    what it rests on, ``next`` the command that goes deeper.
    """

    kind: Fault
    ranks: tuple[int, ...]
    group: str
    position: tuple[int, ...]
    """The ranks of the stage, for an imbalance."""
    since_ns: int
    since_step: int
    effect: float
    """How many times as long as it should: 1.42."""
    cost_percent: Optional[float]
    evidence: tuple[str, ...]
    text: str
    next: str
    until_ns: Optional[int] = None
    to_trace: tuple[int, ...] = ()
    """Ranks whose trace shows more: the one to blame and a healthy peer to compare it with; of a
    group or a stage one or two of its ranks. Empty where no trace would help."""

    @property
    def key(self) -> tuple[Fault, tuple[int, ...], str, tuple[int, ...]]:
        """What makes it the same finding in another window."""
        return self.kind, self.ranks, self.group, self.position

    @property
    def alerts(self) -> bool:
        """Whether it costs enough to call somebody."""
        return self.cost_percent is None or self.cost_percent >= ALERT_PERCENT

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**dataclasses.asdict(self), "kind": str(self.kind), "alerts": self.alerts}


@dataclass(frozen=True)
class Abstained:
    """What can't be judged, and why. Without ``ranks`` it is about the whole job."""

    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Judgement:
    """The answer after a window: what holds now, what has just begun and what is over."""

    verdicts: tuple[Verdict, ...]
    begun: tuple[Verdict, ...] = ()
    cleared: tuple[Verdict, ...] = ()
    abstained: tuple[Abstained, ...] = ()
    unmatched: int = 0
    """Collectives of this window that could not be compared between the ranks of their group."""
