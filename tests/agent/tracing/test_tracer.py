"""The state machine, stepped by hand with a profiler that only notes what it is told."""

from __future__ import annotations

import threading
import time

import pytest

from msmon.agent.agent_log import AgentLog
from msmon.agent.steps.counter import StepCounter
from msmon.agent.tracing.pause import MonitorPause
from msmon.agent.tracing.plan import TracePlan
from msmon.agent.tracing.trace_run import StepPassed
from msmon.agent.tracing.tracer import Tracer
from msmon.bus.codec import encode
from msmon.bus.messages import Status
from msmon.errors import CommandRefused
from msmon.settings.trace_options import check_trace


class NotingBackend:
    name = "noting"
    left_out = ()

    def __init__(self, failing: str = "", write_gate: threading.Event | None = None) -> None:
        self.calls: list[tuple] = []
        self._failing = failing
        self._write_gate = write_gate

    def _note(self, name: str, *arguments: int) -> None:
        self.calls.append((name, *arguments))
        if name == self._failing:
            raise RuntimeError("profiler is busy")

    def begin(self, step: int, first: int) -> None:
        self._note("begin", step, first)

    def step(self, step: int) -> None:
        self._note("step", step)

    def end(self) -> None:
        self._note("end")

    def write(self, first: int, last: int) -> tuple[str, ...]:
        if self._write_gate is not None:
            assert self._write_gate.wait(8.0)
        self._note("write", first, last)
        return (f"{first}-{last}.json",)

    def discard(self) -> None:
        self._note("discard")


class Job:
    """A step counter with a tracer, and what the tracer asks of monitoring."""

    def __init__(self) -> None:
        self.steps = StepCounter()
        self.steps.explicit = True
        self.asked: list[str] = []
        self.pause = MonitorPause(
            lambda: self.asked.append("pause" if self.pause.wanted else "release")
        )
        self.tracer = Tracer(self.steps, AgentLog(None), lambda: None, self.pause)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.steps.advance()

    def arm(self, backend: NotingBackend, pause_monitor: bool = False, **options) -> None:
        options = {"log_file": "/tmp", **options}
        if "duration_ms" not in options:
            options.setdefault("iterations", 2)
        plan = TracePlan("id", check_trace(options), "host_1_rank0")
        self.tracer.arm(plan, backend, pause_monitor)

    @property
    def state(self) -> str:
        return self.tracer.progress.state.value


@pytest.fixture
def job() -> Job:
    return Job()


def test_exactly_the_steps_asked_for_are_traced(job):
    backend = NotingBackend()
    job.step(4)
    job.arm(backend, start_step=10)
    assert job.state == "ready"
    assert (job.tracer.progress.start_step, job.tracer.progress.stop_step) == (10, 12)
    job.step(5)
    assert backend.calls == []
    job.step()
    assert (job.steps.count, job.state) == (10, "running")
    job.step(2)
    assert backend.calls == [("begin", 10, 10), ("step", 11), ("end",), ("write", 10, 11)]
    assert job.state == "done"
    assert job.tracer.progress.captured == [10, 11]
    assert job.tracer.progress.files == ["10-11.json"]
    assert job.steps.at_boundary is None


def test_warm_up_comes_before_the_first_step_and_is_not_counted(job):
    backend = NotingBackend()
    job.arm(backend, start_step=10, warmup=2)
    job.step(20)
    begun = [("begin", 8, 10), ("step", 9), ("step", 10), ("step", 11)]
    assert backend.calls == [*begun, ("end",), ("write", 10, 11)]
    assert job.tracer.progress.captured == [10, 11]


def test_next_step_is_the_one_that_begins_next(job):
    backend = NotingBackend()
    job.step(100)
    job.arm(backend, start_step=-1, iterations=1)
    job.step(2)
    assert backend.calls == [("begin", 101, 101), ("end",), ("write", 101, 101)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"start_step": 99}, "step 99 has passed: the current step is 100"),
        ({"start_step": 100}, "step 100 has begun already"),
        ({"start_step": 102, "warmup": 5}, "5 warm-up steps before step 102 do not fit"),
    ],
)
def test_a_step_that_has_passed_is_refused_with_the_current_one(job, options, text):
    job.step(100)
    with pytest.raises(StepPassed, match=text) as refusal:
        job.arm(NotingBackend(), **options)
    assert refusal.value.step == 100
    assert job.state == "idle"
    assert job.steps.at_boundary is None


def test_a_step_far_ahead_waits(job):
    job.step(100)
    job.arm(NotingBackend(), start_step=2**50)
    job.step(10)
    assert job.state == "ready"


def test_a_second_trace_is_refused_with_the_first_one_named(job):
    job.arm(NotingBackend(), start_step=10)
    with pytest.raises(CommandRefused, match="steps 10 to 11, ready"):
        job.arm(NotingBackend(), start_step=20)


def test_one_trace_after_another(job):
    for first in (5, 10):
        job.arm(NotingBackend(), start_step=first)
        job.step(7)
        assert job.tracer.progress.captured == [first, first + 1]


def test_a_waiting_trace_is_cancelled_at_once(job):
    backend = NotingBackend()
    job.arm(backend, start_step=10)
    job.tracer.cancel()
    assert job.state == "cancelled"
    job.step(20)
    assert backend.calls == []
    with pytest.raises(CommandRefused):
        job.tracer.cancel()


def test_a_running_trace_is_cancelled_at_the_next_step_and_keeps_what_it_has(job):
    backend = NotingBackend()
    job.arm(backend, start_step=1, iterations=100)
    job.step(3)
    job.tracer.cancel()
    job.step()
    assert backend.calls[-1] == ("write", 1, 3)
    assert (job.state, job.tracer.progress.partial) == ("done", True)


def test_a_job_that_ends_early_keeps_a_partial_trace_and_says_so(job):
    backend = NotingBackend()
    job.arm(backend, start_step=5, iterations=10)
    job.step(8)
    job.tracer.end_early()
    assert backend.calls[-1] == ("write", 5, 7)
    assert job.tracer.progress.partial
    assert job.tracer.progress.reason == "3 of 10 steps: the process ended after step 7"


def test_a_job_that_ends_before_the_first_step_says_so(job):
    job.arm(NotingBackend(), start_step=50)
    job.step(8)
    job.tracer.end_early()
    assert job.state == "failed"
    assert "ended after step 7" in job.tracer.progress.reason


@pytest.mark.parametrize("failing", ["begin", "step", "end", "write"])
def test_a_profiler_that_fails_ends_the_trace_and_not_the_training(job, failing):
    backend = NotingBackend(failing)
    job.arm(backend, start_step=2, pause_monitor=True)
    job.pause.grant()
    job.step(10)
    assert job.state == "failed"
    assert "profiler is busy" in job.tracer.progress.reason
    assert job.asked == ["pause", "release"]
    assert job.steps.at_boundary is None


def test_a_failure_with_a_very_long_text_still_fits_a_status(job):
    class Wordy(NotingBackend):
        def begin(self, step: int, first: int) -> None:
            raise RuntimeError("no" * 100_000)

    job.arm(Wordy(), start_step=2)
    job.step(3)
    assert job.state == "failed"
    assert encode(Status("idle", trace=job.tracer.progress))


def test_writing_in_the_background_holds_up_no_step(job):
    gate = threading.Event()
    backend = NotingBackend(write_gate=gate)
    job.arm(backend, start_step=1, analyse=True, async_mode=True)
    job.step(5)
    assert job.state == "parsing"
    assert job.tracer.progress.captured == [1, 2]
    with pytest.raises(CommandRefused, match="still being written"):
        job.arm(NotingBackend(), start_step=20)
    gate.set()
    job.tracer.end_early()
    assert job.state == "done"


def test_by_duration_it_ends_at_the_first_step_after_it(job):
    backend = NotingBackend()
    job.arm(backend, start_step=3, duration_ms=30)
    job.step(5)
    assert job.state == "running"
    time.sleep(0.04)
    job.step()
    assert backend.calls[-1] == ("write", 3, 5)
    assert job.state == "done"


def test_not_before_the_start_time(job):
    backend = NotingBackend()
    job.arm(backend, start_step=2, start_time_ms=int(time.time() * 1000) + 50)
    job.step(5)
    assert backend.calls == []
    time.sleep(0.06)
    job.step()
    assert backend.calls == [("begin", 6, 6)]


def test_monitoring_is_paused_shortly_before_and_comes_back(job):
    job.arm(NotingBackend(), pause_monitor=True, start_step=100)
    job.step(50)
    assert job.asked == []
    job.step(48)
    assert job.asked == ["pause"]
    job.pause.grant()
    job.step(10)
    assert job.asked == ["pause", "release"]
    assert job.state == "done"


def test_a_trace_does_not_run_beside_monitoring(job):
    backend = NotingBackend()
    job.arm(backend, pause_monitor=True, start_step=3)
    job.step(10)
    assert backend.calls == []
    assert job.tracer.progress.reason == "monitoring could not be paused in time"


def test_a_counter_that_jumps_over_the_first_step_fails_the_trace(job):
    job.arm(NotingBackend(), start_step=10)
    job.steps.set(5000)
    job.step()
    assert job.state == "failed"
    assert "went on to 5001" in job.tracer.progress.reason
