"""What a window costs: CPU time in the job, and bytes on the way to the daemon.

- CPU milliseconds per second of a job with 16,000 kernels and 1,000 collectives per second, in
  windows of 10 s: statistics alone, and with the times of devices and the collectives of a step;
- the same at 500,000 kernels per second in windows of 1 s;
- bytes per rank and second of such windows, and of a job with 200 kernels by name.

    python benchmarks/windows.py

Ends with RATIO lines, bigger is better. CPU times are the smallest of several turns, in which both
ways alternate.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from msmon.agent.session.collective_calls import StepSpan
from msmon.agent.session.device_times import most_records
from msmon.agent.session.window_details import WindowDetails
from msmon.bus.codec import encode
from msmon.bus.messages import WindowReport
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind, CommunicationDataType
from msmon.records.statistics.window_statistics import WindowStatistics
from msmon.records.window_frames import frames_of
from msmon.records.windows import Window

START_NS = 1_790_000_000_000_000_000
SECOND_NS = 10**9
TICKS_PER_S = 4
STEPS_PER_S = 5
GROUPS = 4
TURNS = 9
BYTES_BUDGET = 2048
"""Per rank and second."""


def batch(kind: ActivityKind, start_ns: int, count: int, names: list[str]) -> Batch:
    """Return the records of one tick, one after the other on one device."""
    random = np.random.default_rng(start_ns % 1000)
    groups = [f"group_{number}" for number in range(GROUPS)]
    each_ns = SECOND_NS // TICKS_PER_S // count
    records = np.zeros(count, DTYPES[kind])
    records["kind"] = kind
    records["start_ns"] = start_ns + np.arange(count) * each_ns
    records["end_ns"] = records["start_ns"] + random.integers(each_ns // 2, each_ns, count)
    records["name"] = random.integers(1, 1 + len(names), count)
    if kind == ActivityKind.Communication:
        records["comm_name"] = 1 + len(names) + random.integers(0, GROUPS, count)
        records["data_type"], records["count"] = CommunicationDataType.FP16, 1 << 20
    return Batch(kind, records, ("", *names, *groups))


class Job:
    """The records of a window, in ticks as the agent reads them."""

    def __init__(self, window_s: int, kernels: int, collectives: int, operators: int) -> None:
        self.window_s = window_s
        names = [f"Operator{number}" for number in range(operators)]
        calls = [f"hcom_allReduce__101_{number}_1" for number in range(20)]
        self._batches: list[Batch] = []
        for tick in range(window_s * TICKS_PER_S):
            at_ns = START_NS + tick * SECOND_NS // TICKS_PER_S
            kinds = ActivityKind.Kernel, ActivityKind.Communication
            for kind, per_s, texts in zip(kinds, (kernels, collectives), (names, calls)):
                self._batches.append(batch(kind, at_ns, per_s // TICKS_PER_S, texts))

    def statistics(self) -> Window:
        """Make the window as it was before devices and collectives came to it."""
        statistics = WindowStatistics()
        for each in self._batches:
            statistics.add(each)
        return statistics.close(0, START_NS, START_NS + self.window_s * SECOND_NS)

    def whole(self) -> Window:
        """Make the window with all that it holds now."""
        statistics, details = WindowStatistics(), WindowDetails()
        details.look_at_devices(most_records(self.window_s))
        for each in self._batches:
            durations = statistics.add(each)
            if durations is not None:
                details.add(durations)
        details.add_steps(list(self._steps()))
        window = statistics.close(0, START_NS, START_NS + self.window_s * SECOND_NS)
        return details.close(window)

    def _steps(self) -> Iterator[StepSpan]:
        lasted_ns = SECOND_NS // STEPS_PER_S
        for number in range(self.window_s * STEPS_PER_S - 1):
            yield StepSpan(
                number, START_NS + number * lasted_ns, START_NS + (number + 1) * lasted_ns
            )


def cpu_ms(job: Job, *ways: Callable[[], Window]) -> list[float]:
    """Return CPU milliseconds per second of the job, of each way."""
    best = [float("inf")] * len(ways)
    for _ in range(TURNS):
        for place, way in enumerate(ways):
            begin_s = time.process_time()
            way()
            best[place] = min(best[place], (time.process_time() - begin_s) / job.window_s * 1e3)
    return best


def bytes_per_s(job: Job) -> float:
    """Return what a window has on the wire, per second."""
    window = job.whole()
    report = WindowReport("0" * 32, 7, **window.header_fields())
    return sum(map(len, encode(report, payload=frames_of(window)))) / job.window_s


def main() -> None:
    """Measure and print."""
    usual = Job(10, 16_000, 1_000, 40)
    alone, whole = cpu_ms(usual, usual.statistics, usual.whole)
    print(f"16,000 kernels/s, windows of 10 s:  {alone:.2f} ms/s, with details {whole:.2f} ms/s")
    busy = Job(1, 500_000, 1_000, 40)
    busy_alone, busy_whole = cpu_ms(busy, busy.statistics, busy.whole)
    print(
        f"500,000 kernels/s, windows of 1 s: {busy_alone:.2f} ms/s, "
        f"with details {busy_whole:.2f} ms/s"
    )
    small = bytes_per_s(usual)
    large = bytes_per_s(Job(10, 16_000, 1_000, 200))
    print(f"bytes per rank and second: {small:,.0f}, with 200 kernels by name {large:,.0f}")
    print(f"RATIO windows_statistics_over_with_details {alone / whole:.3f}")
    print(f"RATIO windows_statistics_over_with_details_busy {busy_alone / busy_whole:.3f}")
    print(f"RATIO window_bytes_budget_over_used {BYTES_BUDGET / small:.2f}")
    print(f"RATIO window_bytes_budget_over_used_many_names {BYTES_BUDGET / large:.2f}")


if __name__ == "__main__":
    main()
