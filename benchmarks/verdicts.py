"""How often verdicts are right: faults planted into simulated jobs, and judged.

Each fault, and each level of noise without any, in jobs of several layouts. Columns:

- found, named right: runs in which a verdict of the right kind began, and named the right ranks;
- unseen: runs in which nothing was found and the fault cost less than 1 % of a step: there was
  nothing to see;
- wrong rank: runs in which a rank was named that is not to blame;
- delay: windows from the fault's begin to the verdict, median and longest;
- other: verdicts of another kind, per run;
- NVRx, MindCluster: runs in which these rules blamed a right rank, and the most ranks that they
  blamed wrongly at once, on average (``fixed_rules.py``; the same windows).

Then how fast windows are judged, with 10,000 ranks as well.

    python benchmarks/verdicts.py [--seeds 4] [--only FAULT] [--healthy-windows 2000] [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from fixed_rules import best_of_all, running_mean
from fixtures.simulated_windows import WINDOW_S, SimulatedWindows
from judging_speed import print_speeds

from msmon.insight.judge import Judge
from msmon.insight.verdict import Fault, Verdict
from msmon.simulation.parallel_job import (
    EVEN,
    FAULTS,
    UNEVEN,
    Noise,
    ParallelLayout,
    planted,
)
from msmon.simulation.parallel_job.faults import LateInput, SlowHost, SlowKernels

LAYOUTS = (
    ParallelLayout(tensor=4, pipeline=2, data=8),
    ParallelLayout(tensor=2, pipeline=4, data=4),
    ParallelLayout(tensor=1, pipeline=1, data=16, ranks_per_host=4),
    ParallelLayout(tensor=2, pipeline=1, data=16, expert=8),
    ParallelLayout(tensor=1, pipeline=4, data=4, ranks_per_host=4),
    ParallelLayout(tensor=8, pipeline=2, data=2),
    ParallelLayout(tensor=1, pipeline=4, data=2, ranks_per_host=4),
)
NOISES = {"even": EVEN, "uneven": UNEVEN}

BEGIN_WINDOW = 30
WINDOWS = 75
WINDOWS_OF = {"drift": 200}
SEEN_COST = 0.01
"""A fault that costs less of a step can't be seen in it."""

KINDS: dict[str, tuple[Fault, ...]] = {
    "healthy": (),
    "collector-pauses": (Fault.SLOW_HOST,),
    "collector-pauses-of-all": (Fault.DEGRADED, Fault.UNEVEN_DATA),
    "slow-input": (Fault.SLOW_HOST,),
    "slow-host": (Fault.SLOW_HOST,),
    "slow-nic": (Fault.SLOW_LINK,),
    "slow-group": (Fault.SLOW_LINK,),
    "uneven-lengths": (Fault.UNEVEN_DATA,),
    "long-stage": (Fault.STAGE_IMBALANCE,),
    "all-slower": (Fault.DEGRADED,),
    "wandering": (Fault.DEGRADED, Fault.UNEVEN_DATA),
    "slow-rank-and-slow-input": (Fault.SLOW_DEVICE, Fault.SLOW_HOST),
}
"""Fault → kinds of verdict that are right; of the others it is a slow device. The answer to a
wandering fault is that nobody is to blame for long."""


COLUMNS = (
    *("fault", "noise", "found", "named right", "unseen", "wrong rank", "delay", "other"),
    *("NVRx", "MindCluster"),
)


@dataclass
class Run:
    """What came of one run."""

    right: bool = False
    named: bool = False
    wrong: list[Verdict] = field(default_factory=list)
    other: list[Verdict] = field(default_factory=list)
    delay: int | None = None
    cost: float = 0.0
    others_wrong: list[int] = field(default_factory=lambda: [0, 0])
    others_right: list[bool] = field(default_factory=lambda: [False, False])
    judged_s: float = 0.0


def main() -> None:
    """Print the table and the RATIO lines."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=7)
    parser.add_argument("--only", default="", help="some faults, separated by commas")
    parser.add_argument("--noise", default="", choices=["", *NOISES])
    parser.add_argument("--healthy-windows", type=int, default=1000)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else list(FAULTS)
    noises = [options.noise] if options.noise else list(NOISES)
    names = [name for name in wanted if name != "healthy"]
    print("| " + " | ".join(COLUMNS) + " |")
    print("| --- " * len(COLUMNS) + "|")
    for name in names:
        for noise in noises:
            if name != "uneven-lengths" or noise == "even":
                _row(name, noise, options.seeds, options.verbose)
    if "healthy" in wanted:
        for noise in noises:
            _healthy_row(noise, options.healthy_windows)
    if not options.only:
        print_speeds()


def _row(name: str, noise: str, seeds: int, verbose: bool) -> None:
    runs = [_run(name, NOISES[noise], seed) for seed in range(seeds)]
    if verbose:
        for seed, run in enumerate(runs):
            _details(seed, run)
    unseen = sum(not run.right and run.cost < SEEN_COST for run in runs)
    delays = [run.delay for run in runs if run.delay is not None]
    delay = f"{statistics.median(delays):.0f}, {max(delays)}" if delays else ""
    cells = [
        name,
        noise,
        f"{sum(run.right for run in runs)}/{seeds}",
        f"{sum(run.named for run in runs)}/{seeds}",
        str(unseen),
        str(sum(bool(run.wrong) for run in runs)),
        delay,
        f"{sum(len(run.other) for run in runs) / seeds:.1f}",
        *(
            f"{sum(run.others_right[rule] for run in runs)}/{seeds}, "
            f"{sum(run.others_wrong[rule] for run in runs) / seeds:.1f} wrong"
            for rule in range(2)
        ),
    ]
    print("| " + " | ".join(cells) + " |", flush=True)


def _details(seed: int, run: Run) -> None:
    print(f"    seed {seed}: {run.right=} {run.named=} {run.delay=} {run.cost=:.3f}")
    for verdict in [*run.wrong, *run.other]:
        print(
            "       ",
            verdict.kind,
            verdict.ranks,
            verdict.group,
            verdict.effect,
            verdict.cost_percent,
            verdict.evidence,
        )


def _run(name: str, noise: Noise, seed: int) -> Run:
    layouts = [layout for layout in LAYOUTS if _fits(name, layout)]
    layout = layouts[seed % len(layouts)]
    rank = int(np.random.default_rng([seed, 5]).integers(layout.ranks))
    begin_s = BEGIN_WINDOW * WINDOW_S
    faults = planted(name, layout, rank, begin_s)
    blamed = {
        one
        for fault in faults
        if isinstance(fault, (SlowKernels, LateInput, SlowHost))
        for one in fault.ranks
    }
    if name in ("long-stage", "all-slower", "collector-pauses-of-all"):
        blamed = set()
    begin = 0 if all(fault.begin_s == 0 for fault in faults) else BEGIN_WINDOW
    run = Run()
    job = SimulatedWindows(layout, faults, noise=noise, seed=seed)
    judge, rules = Judge(), (best_of_all(), running_mean())
    found: dict[Verdict, int] = {}
    step_ns = []
    for number, window in enumerate(job.windows(WINDOWS_OF.get(name, WINDOWS))):
        step_ns.append(window.step_ns)
        began = time.perf_counter()
        judgement = judge.add(window)
        run.judged_s += time.perf_counter() - began
        found.update(dict.fromkeys(judgement.begun, number))
        for place, rule in enumerate(rules):
            accused = rule(window)
            run.others_wrong[place] = max(run.others_wrong[place], len(accused - blamed))
            run.others_right[place] |= bool(accused & blamed) and number >= begin
    well = SimulatedWindows(layout, noise=noise, seed=seed).windows(BEGIN_WINDOW)
    usual_ns = statistics.mean(window.step_ns for window in well)
    run.cost = statistics.mean(step_ns[max(begin, len(step_ns) - 60) :]) / usual_ns - 1
    _score(run, name, noise, found, blamed, begin)
    return run


def _fits(name: str, layout: ParallelLayout) -> bool:
    """Whether a job of this layout can have the fault."""
    per_host = min(layout.ranks_per_host, layout.ranks)
    of_stage = layout.data * layout.tensor
    if name == "long-stage":
        return layout.pipeline > 1
    if name in ("slow-nic", "slow-group"):
        return of_stage > per_host  # the gradients travel between hosts
    if name == "thermal-step":
        return of_stage >= 2 * per_host  # a host that is all of a stage is a long stage
    return True


def _score(
    run: Run, name: str, noise: Noise, found: dict[Verdict, int], blamed: set[int], begin: int
) -> None:
    kinds = KINDS.get(name, (Fault.SLOW_DEVICE,))
    named: set[int] = set()
    for verdict, number in found.items():
        if not set(verdict.ranks) <= blamed:
            run.wrong.append(verdict)
        elif verdict.kind in kinds and number >= begin and (verdict.ranks or not blamed):
            run.right = True
            named |= set(verdict.ranks)
            run.delay = number - begin if run.delay is None else run.delay
        elif verdict.kind is not Fault.UNEVEN_DATA or noise is not UNEVEN:
            run.other.append(verdict)
    run.named = run.right and named == blamed


def _healthy_row(noise: str, windows: int) -> None:
    rank_hours, alarms, named = 0.0, [], 0
    others = [0, 0]
    for seed, layout in enumerate(LAYOUTS):
        judge, rules = Judge(), (best_of_all(), running_mean())
        job = SimulatedWindows(layout, noise=NOISES[noise], seed=100 + seed)
        for window in job.windows(windows):
            alarms += judge.add(window).begun
            for place, rule in enumerate(rules):
                others[place] += bool(rule(window))
        rank_hours += windows * WINDOW_S / 3600 * layout.ranks
    unwanted = [one for one in alarms if not (noise == "uneven" and one.kind is Fault.UNEVEN_DATA)]
    for one in unwanted:
        print("   ", one.kind, one.ranks, one.group, one.effect, one.cost_percent, one.evidence)
    named = sum(bool(one.ranks) for one in unwanted)
    print(
        f"healthy, {noise}: {rank_hours:.0f} rank-hours; {len(unwanted)} false alarms "
        f"({len(unwanted) / rank_hours * 1000:.2f} per 1,000 rank-hours), {named} name a rank; "
        f"windows with blame by NVRx {others[0]}, MindCluster {others[1]}",
        flush=True,
    )


if __name__ == "__main__":
    main()
