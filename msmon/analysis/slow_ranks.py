"""Which ranks of a recorded job are slow, why, since when, and what it costs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msmon.analysis.plan import Plan, plan_of
from msmon.analysis.records import RankRecords
from msmon.analysis.steps import JobSteps, StepSource, steps_of
from msmon.analysis.windows import WindowMaker
from msmon.conversion.sources.source import Source
from msmon.errors import SinkError
from msmon.insight.judge import Judge
from msmon.insight.verdict import Abstained, Verdict


@dataclass
class SlowRanks:
    """The answer."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    steps_from: StepSource
    step_anchor: str
    """The operator that steps were inferred from."""
    steps: int
    windows: int
    verdicts: list[Verdict] = field(default_factory=list)
    """What held at the end or earlier, the costliest first; an ended one has ``until_ns``."""
    minor: list[Verdict] = field(default_factory=list)
    """What costs less than 1 % of a step."""
    abstained: list[Abstained] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Sentences about what could not be read; they may quote the input."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "ranks": list(self.ranks),
            "hosts": list(self.hosts),
            "steps": {
                "count": self.steps,
                "from": str(self.steps_from),
                "anchor": self.step_anchor,
            },
            "windows": self.windows,
            "verdicts": [verdict.as_json() for verdict in self.verdicts],
            "minor": [verdict.as_json() for verdict in self.minor],
            "abstained": [
                {"ranks": list(one.ranks), "reason": one.reason} for one in self.abstained
            ],
            "problems": self.problems,
        }


def slow_ranks(
    sources: Sequence[Source], advance: Callable[[int], None] = lambda size: None
) -> SlowRanks:
    """Judge the records of all sources; ``advance`` is told how many more bytes were read.

    Raises SinkError when no rank can be read, OSError when there is no room for the temporary
    files.
    """
    problems: list[str] = []
    with contextlib.ExitStack() as files:
        ranks = _read(sources, advance, problems, files)
        steps = steps_of(ranks)
        plan = plan_of(ranks, steps)
        maker = WindowMaker(plan, steps)
        for one in ranks:
            maker.add(one)
    return _judged(maker, ranks, steps, plan, problems)


def _read(
    sources: Sequence[Source],
    advance: Callable[[int], None],
    problems: list[str],
    files: contextlib.ExitStack,
) -> list[RankRecords]:
    """Return the records of each rank; ``files`` closes them."""
    ranks: dict[int, RankRecords] = {}
    for source in sources:
        rank = source.process.rank
        if rank < 0:
            problems.append(f"{source.paths[0]}: left out, its rank is not known")
            continue
        if rank not in ranks:
            ranks[rank] = files.enter_context(contextlib.closing(RankRecords(rank)))
        ranks[rank].read(source, advance)
        problems += [f"{source.paths[0]}: {problem}" for problem in source.problems]
    usable = [one for one in ranks.values() if one.last_ns]
    if not usable:
        raise SinkError(
            "; ".join(problems[:3]) or "there are no records of kernels, calls or communication",
            "record with: msmon npu-monitor start --kind Kernel,Communication,Marker "
            "--export-type DB",
        )
    for one in usable:
        one.finish()
    return sorted(usable, key=lambda one: one.rank)


def _judged(
    maker: WindowMaker, ranks: list[RankRecords], steps: JobSteps, plan: Plan, problems: list[str]
) -> SlowRanks:
    judge = Judge()
    known = {one.rank for one in ranks}
    windows = 0
    now: tuple[Verdict, ...] = ()
    ended: list[Verdict] = []
    abstained: dict[tuple[tuple[int, ...], str], int] = {}
    for window in maker.windows():
        judgement = judge.add(window)
        windows += 1
        now = judgement.verdicts
        ended += judgement.cleared
        for one in judgement.abstained:
            key = (one.ranks, one.reason)
            abstained[key] = abstained.get(key, 0) + 1
    found = sorted([*now, *ended], key=lambda one: -(one.cost_percent or 0.0))
    missing = tuple(sorted(set(range(max(known) + 1)) - known))
    reasons = [
        _over(ranks_, reason, count, windows) for (ranks_, reason), count in abstained.items()
    ]
    if missing:
        reasons.insert(0, Abstained(missing, "none of the files is of this rank"))
    return SlowRanks(
        ranks=tuple(sorted(known)),
        hosts=tuple(sorted({one.host for one in ranks if one.host})),
        steps_from=steps.source,
        step_anchor=steps.anchor,
        steps=len(plan.numbers),
        windows=windows,
        verdicts=[one for one in found if one.alerts],
        minor=[one for one in found if not one.alerts],
        abstained=reasons,
        problems=problems,
    )


def _over(ranks: tuple[int, ...], reason: str, count: int, windows: int) -> Abstained:
    where = "" if count == windows else f" (in {count} of {windows} windows)"
    return Abstained(ranks, f"{reason}{where}")
