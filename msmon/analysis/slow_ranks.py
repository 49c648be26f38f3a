"""Which ranks of a recorded job are slow, why, since when, and what it costs."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msmon.analysis.plan import Plan, plan_of
from msmon.analysis.records import RankRecords
from msmon.analysis.steps import JobSteps, StepSource, steps_of
from msmon.analysis.windows import WindowMaker
from msmon.conversion.sources.source import Source
from msmon.errors import SinkError
from msmon.insight.judge import Judge
from msmon.insight.verdict import Abstained, Verdict

MOST_RANKS = 1 << 17
"""Ranks below the highest one that are missed when they have no file. A forged name may hold any
number."""


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
    with tempfile.TemporaryDirectory(prefix="msmon-") as directory:
        ranks = _read(sources, advance, problems, Path(directory))
        steps = steps_of(ranks)
        plan = plan_of(ranks, steps)
        maker = WindowMaker(plan, steps)
        for one in ranks:
            maker.add(one)
    if steps.repeated:
        problems.append(
            f"{steps.repeated:,} steps came again, as after a restart of the job; each number "
            "counts once"
        )
    return _judged(maker, ranks, steps, plan, problems)


def _read(
    sources: Sequence[Source],
    advance: Callable[[int], None],
    problems: list[str],
    directory: Path,
) -> list[RankRecords]:
    """Return the records of each rank, reduced to temporary files in ``directory``."""
    ranks: dict[int, RankRecords] = {}
    for source in sources:
        rank = source.process.rank
        if rank < 0:
            problems.append(f"{source.paths[0]}: left out, its rank is not known")
            continue
        ranks.setdefault(rank, RankRecords(rank, directory / str(rank))).read(source, advance)
        problems += [f"{source.paths[0]}: {problem}" for problem in source.problems]
    for one in ranks.values():
        one.finish()
        problems += one.left_out()
    usable = [one for one in ranks.values() if one.last_ns]
    if not usable:
        raise SinkError(
            "; ".join(problems[:3]) or "there are no records of kernels, calls or communication",
            "record with: msmon npu-monitor start --kind Kernel,Communication,Marker "
            "--export-type DB",
        )
    return sorted(usable, key=lambda one: one.rank)


def _judged(
    maker: WindowMaker, ranks: list[RankRecords], steps: JobSteps, plan: Plan, problems: list[str]
) -> SlowRanks:
    judge = Judge()
    known = {one.rank for one in ranks}
    missing = sorted(set(range(min(max(known), MOST_RANKS))) - known)
    windows = unmatched = 0
    now: tuple[Verdict, ...] = ()
    ended: list[Verdict] = []
    abstained: Counter[tuple[tuple[int, ...], str]] = Counter()
    for window in maker.windows(dict.fromkeys(missing, "nothing of it could be read")):
        judgement = judge.add(window)
        windows += 1
        now = judgement.verdicts
        ended += judgement.cleared
        unmatched += judgement.unmatched
        abstained.update((one.ranks, one.reason) for one in judgement.abstained)
    found = sorted([*now, *ended], key=lambda one: -(one.cost_percent or 0.0))
    reasons = [_over(*key, count, windows) for key, count in abstained.items()]
    if unmatched:
        reason = f"{unmatched:,} collectives could not be matched between the ranks of their group"
        reasons.append(Abstained((), reason))
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
