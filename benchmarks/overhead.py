"""What the agent costs the job that it watches, with real native recording threads.

Uses the C library double of the tests, so it needs a C compiler named cc. Measures:

- CPU seconds of the collector's thread per million records, with statistics for every operator,
  without and with a filter. The baseline is a loop that reads one ctypes structure per record
  and only sums durations;
- the same for markers, which are paired to ranges first, as a multiple of a kernel's cost;
- how much slower a Python loop that never releases the GIL runs while the agent collects
  100,000 records per second. The agent is on and off in turns, with the same records;
- CPU time of an agent that has no work and no daemon, and the time of one step();
- how much resident memory grows at 1,000,000 records per second, and whether it shrinks again.

    python benchmarks/overhead.py
"""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msmon
from msmon.agent.agent_log import AgentLog
from msmon.agent.collector import Collector
from msmon.agent.link.pending import PendingCommand
from msmon.agent.link.uplink import Uplink
from msmon.agent.steps.counter import StepCounter
from msmon.agent.tracing.pause import MonitorPause
from msmon.bus.messages import Answer
from msmon.records.kinds import ActivityKind
from msmon.records.layout import LAYOUTS

BUILD_LIBRARY = Path(__file__).resolve().parent.parent / "tests" / "native" / "build.py"

FILTER = "Kernel:MatMul"
CPU_RATE = 500_000
CPU_SECONDS = 4.0
LOOP_RATE = 100_000
LOOP_TURNS = 6
LOOP_TURN_SECONDS = 2.0
MEMORY_RATE = 1_000_000
MEMORY_SECONDS = 5.0
MEMORY_BUDGET_MIB = 120.0
CPU_BUDGET_S = 0.05
IDLE_SECONDS = 6.0
IDLE_BUDGET = 0.001
STEPS = 1_000_000


class Recording:
    """Native threads of the C library double, which record kernels."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)

    def start(self, records_per_second: int, kind: ActivityKind = ActivityKind.Kernel) -> None:
        kinds = (ctypes.c_uint32 * 1)(kind)
        self._library.double_start_recording(
            ctypes.c_size_t(1),
            ctypes.c_uint64(records_per_second),
            kinds,
            ctypes.c_size_t(1),
            ctypes.c_uint64(0),
        )

    def stop(self) -> None:
        self._library.double_stop_recording()

    def filled(self, count: int) -> ctypes.Array[ctypes.c_uint8]:
        """Return a buffer with ``count`` kernel records."""
        kinds = (ctypes.c_uint32 * 1)(ActivityKind.Kernel)
        data = (ctypes.c_uint8 * (count * 56))()
        self._library.double_fill.restype = ctypes.c_size_t
        self._library.double_fill(
            data, ctypes.c_size_t(len(data)), kinds, ctypes.c_size_t(1), ctypes.c_uint64(count)
        )
        return data


class Agent:
    """The collector as in a job. The benchmark commands it directly, without a daemon."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}
        self._answered = threading.Event()
        self.collector = Collector(
            Uplink(lambda: None),
            StepCounter(),
            AgentLog(None),
            lambda: None,
            self._answer,
            SimpleNamespace(holder="", cancel=None),
            MonitorPause(lambda: None),
        )
        self.collector.start()

    def _answer(self, message_id: str, answer: Answer) -> None:
        self._answers[message_id] = answer
        self._answered.set()

    def command(self, action: str, **fields: Any) -> None:
        self._answered.clear()
        self.collector.submit(PendingCommand(action, action, fields))
        self._answered.wait()
        answer = self._answers[action]
        if not answer.ok:
            raise SystemExit(f"{action}: {answer.text} {answer.next_step}")

    def received(self) -> int:
        return self.collector.state.counts.received.get("Kernel", 0)


# --- processor time ----------------------------------------------------------------------------


def cpu_per_million(
    agent: Agent,
    recording: Recording,
    filter_text: str = "",
    kind: ActivityKind = ActivityKind.Kernel,
) -> float:
    agent.command("monitor.start", kinds=kind.name, filter=filter_text, report_interval_s=1.0)
    recording.start(CPU_RATE, kind)
    time.sleep(1.0)
    before = agent.collector.state
    time.sleep(CPU_SECONDS)
    after = agent.collector.state
    recording.stop()
    agent.command("monitor.stop")
    records = after.counts.received[kind.name] - before.counts.received[kind.name]
    return (after.cpu_s - before.cpu_s) / records * 1e6


def kernel_structure() -> type[ctypes.Structure]:
    types = {"<u4": ctypes.c_uint32, "<u8": ctypes.c_uint64}
    fields = [
        (name, ctypes.c_char_p if name in ("name", "type") else types[code])
        for name, code in LAYOUTS[ActivityKind.Kernel].c_fields
    ]
    layout = {"_pack_": 1, "_layout_": "ms", "_fields_": fields}
    return type("Kernel", (ctypes.Structure,), layout)


def cpu_per_million_by_record(recording: Recording, count: int = 200_000) -> float:
    structure = kernel_structure()
    data = recording.filled(count)
    address = ctypes.addressof(data)
    totals: dict[tuple[int, bytes], list[int]] = {}
    start_s = time.thread_time()
    for position in range(address, address + len(data), 56):
        record = structure.from_address(position)
        total = totals.setdefault((record.device_id, record.name), [0, 0])
        total[0] += 1
        total[1] += record.end_ns - record.start_ns
    return (time.thread_time() - start_s) / count * 1e6


# --- slow-down of the job ----------------------------------------------------------------------


def loop_speed(seconds: float) -> float:
    """Return rounds per second of a loop that never releases the GIL by itself."""
    rounds = 0
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        value = 0
        for number in range(2000):
            value = (value * 31 + number) & 0xFFFF
        rounds += 1
    return rounds / seconds


def slow_down(agent: Agent, recording: Recording) -> tuple[float, float]:
    """Return (ratio, noise), both medians over neighbouring turns.

    ``ratio`` is the speed of the loop with the agent divided by its speed without. ``noise`` is
    the same ratio between two turns without the agent, so a perfect measurement gives 1.
    """
    with_agent, without = [], []
    recording.start(LOOP_RATE)
    loop_speed(LOOP_TURN_SECONDS)
    for _ in range(LOOP_TURNS):
        before = loop_speed(LOOP_TURN_SECONDS)
        agent.command("monitor.start", kinds="Kernel", report_interval_s=1.0)
        during = loop_speed(LOOP_TURN_SECONDS)
        agent.command("monitor.stop")
        after = loop_speed(LOOP_TURN_SECONDS)
        with_agent.append(2 * during / (before + after))
        without.append(after / before)
    recording.stop()
    return statistics.median(with_agent), statistics.median(without)


# --- memory ------------------------------------------------------------------------------------


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory_growth(agent: Agent, recording: Recording) -> tuple[float, float, float]:
    """Return (growth at the peak in MiB, growth left when idle, records per second)."""
    before = resident_mib()
    agent.command("monitor.start", kinds="Kernel", report_interval_s=1.0)
    recording.start(MEMORY_RATE)
    peak = before
    start_s = time.monotonic()
    while time.monotonic() - start_s < MEMORY_SECONDS:
        peak = max(peak, resident_mib())
        time.sleep(0.01)
    recording.stop()
    elapsed_s = time.monotonic() - start_s
    agent.command("monitor.stop")
    gc.collect()
    return peak - before, resident_mib() - before, agent.received() / elapsed_s


# --- idle ---------------------------------------------------------------------------------------


def idle_share() -> float:
    """Return the share of one core that the whole process uses while the agent has no work."""
    msmon.init()
    time.sleep(2.0)
    before_s, start_s = time.process_time(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    share = (time.process_time() - before_s) / (time.monotonic() - start_s)
    msmon.shutdown()
    return share


def step_ns() -> float:
    return timeit.timeit(msmon.step, number=STEPS) / STEPS * 1e9


# --- all of it ---------------------------------------------------------------------------------


def with_library(measure: Callable[[Recording], None]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.executable, str(BUILD_LIBRARY), directory], check=True)
        os.environ["ASCEND_HOME_PATH"] = directory
        os.environ["MSMON_RUNTIME_DIR"] = directory
        os.environ.pop("MSMON_SIMULATE", None)
        measure(Recording(f"{directory}/lib64/libmspti.so"))


def main() -> None:
    with_library(measure_all)


def measure_all(recording: Recording) -> None:
    idle = idle_share()
    print(f"idle: {100 * idle:.3f} % of a core; one step(): {step_ns():.0f} ns")
    agent = Agent()
    growth, left, rate = memory_growth(agent, recording)
    print(f"memory at {rate:,.0f} records/s: +{growth:.0f} MiB, when idle +{left:.0f} MiB")
    plain = cpu_per_million(agent, recording)
    filtered = cpu_per_million(agent, recording, FILTER)
    markers = cpu_per_million(agent, recording, kind=ActivityKind.Marker)
    by_record = cpu_per_million_by_record(recording)
    print(f"CPU seconds per million records: {plain:.3f}, with a filter {filtered:.3f}")
    print(f"the same for markers: {markers:.3f}")
    print(f"the same by ctypes, record by record: {by_record:.3f}")
    ratio, noise = slow_down(agent, recording)
    print(f"speed of a GIL-bound loop, agent on / off: {ratio:.4f} (off / off: {noise:.4f})")
    print(f"RATIO cpu_by_record_over_agent {by_record / plain:.2f}")
    print(f"RATIO cpu_by_record_over_agent_with_filter {by_record / filtered:.2f}")
    print(f"RATIO cpu_budget_over_agent {CPU_BUDGET_S / plain:.2f}")
    print(f"RATIO cpu_kernel_over_marker {plain / markers:.3f}")
    print(f"RATIO loop_speed_agent_on_over_off {ratio:.4f}")
    print(f"RATIO idle_budget_over_idle {IDLE_BUDGET / idle:.2f}")
    print(f"RATIO memory_budget_over_growth {MEMORY_BUDGET_MIB / growth:.2f}")


if __name__ == "__main__":
    main()
