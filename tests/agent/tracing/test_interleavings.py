"""Two threads at each boundary of a trace's life, in both orders.

One thread steps, another cancels (or ends the process). A gate holds the stepping thread
exactly where the tracer calls out: into the profiler, for the pause, after a change of state.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pytest

from msmon.agent.agent_log import AgentLog
from msmon.agent.steps.counter import StepCounter
from msmon.agent.tracing.pause import MonitorPause
from msmon.agent.tracing.plan import TracePlan
from msmon.agent.tracing.tracer import Tracer
from msmon.errors import CommandRefused
from msmon.settings.trace_options import check_trace

LIMIT_S = 10.0
ENDED = {"done", "failed", "cancelled"}


class Gate:
    """Holds the thread that passes the place ``at`` for the first time until it is opened."""

    def __init__(self, at: str) -> None:
        self._at = at
        self._barrier = threading.Barrier(2)
        self._held = False
        self._opened = threading.Event()

    def passing(self, place: str) -> None:
        if place == self._at and not self._held:
            self._held = True
            self._barrier.wait(LIMIT_S)
            assert self._opened.wait(LIMIT_S)

    def await_held(self) -> None:
        self._barrier.wait(LIMIT_S)

    def open(self) -> None:
        self._opened.set()


class Profiler:
    name = "noting"
    left_out = ()

    def __init__(self, passing: Callable[[str], None]) -> None:
        self._passing = passing
        self.running = False

    def begin(self, step: int, first: int) -> None:
        self._passing("begin")
        self.running = True

    def step(self, step: int) -> None:
        self._passing("step")

    def end(self) -> None:
        self._passing("end")
        self.running = False

    def write(self, first: int, last: int) -> tuple[str, ...]:
        self._passing("write")
        return (f"{first}-{last}",)

    def discard(self) -> None:
        self.running = False


class Monitor:
    """Monitoring on a thread of its own: follows what the pause says, as the collector does."""

    def __init__(self) -> None:
        self.pause = MonitorPause(lambda: self._changed.set())
        self.running = True
        self._changed = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        while not self._ended:
            self._changed.wait()
            self._changed.clear()
            if self.pause.wanted and not self.pause.granted:
                self.running = False
                self.pause.grant()
            elif not self.pause.wanted and self.pause.granted and self.pause.take_back():
                self.running = True

    def end(self) -> None:
        self._ended = True
        self._changed.set()
        self._thread.join(LIMIT_S)


class Job:
    """A stepping thread, monitoring, and one trace of steps 5 and 6."""

    def __init__(self, gate: Gate, **options) -> None:
        self.gate = gate
        self.monitor = Monitor()
        self.steps = StepCounter()
        self.steps.explicit = True
        self.tracer = Tracer(self.steps, AgentLog(None), self._changed, self.monitor.pause)
        self.profiler = Profiler(gate.passing)
        self._stepping: threading.Thread | None = None
        fields = {"log_file": "/tmp", "iterations": 2, "start_step": 5, "warmup": 1, **options}
        self.tracer.arm(TracePlan("id", check_trace(fields), "owner"), self.profiler, True)

    def _changed(self) -> None:
        if self._stepping is threading.current_thread():
            self.gate.passing(f"became {self.state}")

    def step_until_ended(self) -> None:
        """Step on a thread of its own until the trace has ended, as a training loop would."""

        def loop() -> None:
            end_s = time.monotonic() + LIMIT_S
            while self.state not in ENDED and time.monotonic() < end_s:
                self.gate.passing(f"before step {self.steps.count + 1}")
                self.steps.advance()
                time.sleep(0.002)  # monitoring needs a moment to make way

        self._stepping = threading.Thread(target=loop)
        self._stepping.start()

    def join(self) -> None:
        assert self._stepping is not None
        self._stepping.join(LIMIT_S)
        assert not self._stepping.is_alive()

    @property
    def state(self) -> str:
        return self.tracer.progress.state.value


@pytest.fixture
def job():
    made: list[Job] = []

    def make(at: str, **options) -> Job:
        made.append(Job(Gate(at), **options))
        return made[-1]

    yield make
    for one in made:
        one.monitor.end()


def assert_all_is_as_before(job: Job, wait_for) -> None:
    """The trace has ended, step() is a counter, the profiler rests and monitoring goes on."""
    assert job.state in ENDED
    assert job.tracer.holder == ""
    assert job.steps.at_boundary is None
    assert not job.profiler.running
    assert not job.monitor.pause.wanted
    wait_for(lambda: job.monitor.running and not job.monitor.pause.granted, "monitoring goes on")
    job.tracer.arm(  # the next trace is welcome
        TracePlan("next", check_trace({"log_file": "/tmp", "iterations": 1}), "owner"),
        Profiler(lambda place: None),
        False,
    )


PLACES = [
    "before step 4",
    "before step 5",
    "became running",
    "begin",
    "step",
    "before step 6",
    "before step 7",
    "end",
    "became parsing",
    "write",
    "became done",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_cancel_while_the_stepping_thread_is_held(job, wait_for, place):
    started = job(place)
    started.step_until_ended()
    started.gate.await_held()
    try:
        started.tracer.cancel()
    except CommandRefused:  # all steps are on record already
        assert place in ("became parsing", "write", "became done")
    started.gate.open()
    started.join()
    assert_all_is_as_before(started, wait_for)


@pytest.mark.parametrize("place", PLACES)
def test_the_end_of_the_process_while_the_stepping_thread_is_held(job, wait_for, place):
    started = job(place)
    started.step_until_ended()
    started.gate.await_held()
    ending = threading.Thread(target=started.tracer.end_early)
    ending.start()
    started.gate.open()
    ending.join(LIMIT_S)
    started.join()
    assert_all_is_as_before(started, wait_for)


@pytest.mark.parametrize("async_mode", [False, True])
def test_a_cancel_while_the_files_are_written(job, wait_for, async_mode):
    started = job("write", async_mode=async_mode, analyse=True)
    started.step_until_ended()
    started.gate.await_held()
    with pytest.raises(CommandRefused, match="no trace waits or runs"):
        started.tracer.cancel()
    started.gate.open()
    started.join()
    assert_all_is_as_before(started, wait_for)
    assert started.tracer.progress.files == []  # that of the next one


def test_a_boundary_whose_trace_was_cancelled_just_before_does_nothing(job, wait_for):
    """The stepping thread has read the hook, then the trace is cancelled, then it calls it."""
    started = job("never")
    hook = started.steps.at_boundary
    started.steps.count = 4
    started.tracer.cancel()
    hook()
    assert started.state == "cancelled"
    assert_all_is_as_before(started, wait_for)


def test_a_trace_cancelled_while_the_pause_is_asked_for_leaves_monitoring_running(wait_for):
    """The one who asks is held before the collector hears of it; the cancel comes first."""
    asking, go_on = threading.Event(), threading.Event()
    seen: list[bool] = []

    def on_change() -> None:
        if not asking.is_set():
            asking.set()
            assert go_on.wait(LIMIT_S)
        seen.append(pause.wanted)  # what the collector finds when it looks

    pause = MonitorPause(on_change)
    steps = StepCounter()
    tracer = Tracer(steps, AgentLog(None), lambda: None, pause)
    plan = TracePlan("id", check_trace({"log_file": "/tmp", "iterations": 1, "start_step": 9}), "")
    tracer.arm(plan, Profiler(lambda place: None), True)
    steps.count = 7
    stepping = threading.Thread(target=tracer.at_boundary)
    stepping.start()
    assert asking.wait(LIMIT_S)
    cancelling = threading.Thread(target=tracer.cancel)
    cancelling.start()
    go_on.set()
    stepping.join(LIMIT_S)
    cancelling.join(LIMIT_S)
    assert not pause.wanted
    assert seen[-1] is False


def test_what_is_wanted_wins_over_the_order_in_which_it_was_said():
    pause = MonitorPause(lambda: None)
    pause.want()
    pause.withdraw()
    assert not pause.wanted
    pause.grant()  # the collector was still busy with the first wish
    assert pause.take_back()
    pause.want()
    pause.grant()
    assert not pause.take_back()
    assert pause.granted


def test_a_thread_that_steps_while_another_drives_the_profiler_goes_on_at_once(job, wait_for):
    started = job("begin")
    started.step_until_ended()
    started.gate.await_held()
    began_s = time.monotonic()
    started.tracer.at_boundary()
    assert time.monotonic() - began_s < 1.0
    started.gate.open()
    started.join()
    assert_all_is_as_before(started, wait_for)


def test_cancels_at_any_moment_leave_nothing_behind(job, wait_for):
    for turn in range(60):
        started = job("never")
        started.step_until_ended()
        time.sleep(turn * 0.0004)
        with contextlib.suppress(CommandRefused):
            started.tracer.cancel()
        started.join()
        assert_all_is_as_before(started, wait_for)
