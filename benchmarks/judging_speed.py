"""How fast windows are judged: a job of 64 ranks beside plain Python, and a job of 10,000."""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from fixtures.simulated_windows import SimulatedWindows

from msmon.insight.job import JobNames, JobWindow
from msmon.insight.judge import Judge
from msmon.simulation.parallel_job import JobShape, ParallelLayout, planted

OPERATORS = 200
BUDGET_S = 1.0
SMALL = ParallelLayout(tensor=4, pipeline=2, data=8)
LARGE = ParallelLayout(tensor=8, pipeline=5, data=250)


def print_speeds(large_windows: int = 6) -> None:
    """Print what was seen, and the RATIO lines."""
    windows = [
        _with_operators(window, OPERATORS)
        for window in SimulatedWindows(SMALL, planted("slow-kernel", SMALL, 9, 0.0)).windows(30)
    ]
    judged_s, plain_s = _judged(windows)[1], _plain(windows)
    print(f"64 ranks x {OPERATORS} operators: {len(windows) / judged_s:.0f} windows/s")
    print(f"a plain loop that only compares kernels with peers: {len(windows) / plain_s:.1f} /s")
    few = JobShape(micro_batches=4, layers=1)
    job = SimulatedWindows(LARGE, planted("slow-kernel", LARGE, 4321, 0.0), shape=few)
    large = (_with_operators(window, OPERATORS) for window in job.windows(large_windows, 1))
    durations = []
    judge = Judge()
    named: set[tuple[int, ...]] = set()
    for window in large:
        took, verdicts = _timed(judge, window)
        durations.append(took)
        named |= {verdict.ranks for verdict in verdicts}
    per_window = statistics.median(durations[1:])
    rows = len(window.work), len(window.collectives)
    print(
        f"{LARGE.ranks} ranks x {OPERATORS} operators ({rows[0]} rows of work, {rows[1]} of "
        f"collectives): {per_window:.2f} s a window, longest {max(durations):.2f} s; named {named}"
    )
    print(f"RATIO judged_per_plain_loop {plain_s / judged_s:.2f}")
    print(f"RATIO budget_10000_ranks {BUDGET_S / per_window:.2f}")


def _timed(judge: Judge, window: JobWindow) -> tuple[float, tuple]:
    begin = time.process_time()
    judgement = judge.add(window)
    return time.process_time() - begin, judgement.verdicts


def _judged(windows: list[JobWindow]) -> tuple[Judge, float]:
    judge, begin = Judge(), time.process_time()
    for window in windows:
        judge.add(window)
    return judge, time.process_time() - begin


def _plain(windows: list[JobWindow]) -> float:
    """Compare each rank's kernels with the median of all ranks, row by row."""
    begin = time.process_time()
    for window in windows:
        by_operator: dict[int, dict[int, float]] = defaultdict(dict)
        weights: dict[tuple[int, int], int] = {}
        for row in window.work:
            by_operator[int(row["operator"])][int(row["member"])] = float(row["median_ns"])
            weights[int(row["operator"]), int(row["member"])] = int(row["total_ns"])
        own: dict[int, float] = defaultdict(float)
        expected: dict[int, float] = defaultdict(float)
        for operator, medians in by_operator.items():
            reference = statistics.median(medians.values())
            for member, median in medians.items():
                own[member] += weights[operator, member]
                expected[member] += weights[operator, member] * reference / median
        _ = [member for member in own if own[member] > 1.1 * expected[member]]
    return time.process_time() - begin


def _with_operators(window: JobWindow, count: int) -> JobWindow:
    """Return a window whose work is split into ``count`` operators with a noise of their own."""
    random = np.random.default_rng(window.first_step + 1)
    names = window.names.operators
    copies = -(-count // len(names))
    more = [(f"{name}_{copy}", host) for copy in range(copies) for name, host in names][:count]
    parts = []
    for copy in range(copies):
        part = window.work.copy()
        part["operator"] += copy * len(names)
        part["median_ns"] *= 1 + 0.004 * random.standard_normal(len(part))
        parts.append(part[part["operator"] < count])
    work = np.concatenate(parts)
    work["total_ns"] //= copies
    job = window.names
    return JobWindow(
        JobNames(job.members, more, job.groups, job.operations),
        window.start_ns,
        window.end_ns,
        window.first_step,
        window.collective_steps,
        work,
        window.traffic,
        window.collectives,
        window.times,
    )


if __name__ == "__main__":
    print_speeds()
