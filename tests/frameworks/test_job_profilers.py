"""A job that uses PyTorch's profilers itself, while traces are asked for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="PyTorch is not installed (scripts/test --full has it)",
    ),
    pytest.mark.xdist_group("job_profilers"),
]

JOB = Path(__file__).with_name("profiling_job.py")


KINDS = ("profile", "autograd", "warmup", "itt")

AFTER = "trace,nothing,leave,nothing,nothing,nothing"
NEXT = [
    f"enter profile,{AFTER},export",
    f"enter autograd,{AFTER},export",
    f"enter warmup,{AFTER}",
]
UNDER = [f"enter {own},trace_at_next,nothing,nothing,leave,nothing" for own in KINDS]
RUNNING = [
    "trace,nothing,enter profile,nothing,leave,export",
    "trace,nothing,enter autograd,nothing,leave,export",
    "trace,nothing,enter itt,nothing,leave",
    "trace,nothing,enter warmup,own_step,own_step,own_step,leave,export",
]
WARM_UP = "trace_warmup,nothing,enter profile,nothing,leave,export"
ELSEWHERE = "trace,nothing,elsewhere,nothing,nothing"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[str]]:
    """Calls of a job → state, number of files and reason of its trace. All in one process,
    because it takes seconds to import PyTorch."""
    orders = [*NEXT, *UNDER, *RUNNING, WARM_UP, ELSEWHERE]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(JOB), *orders],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return dict(zip(orders, (line.split("|") for line in done.stdout.splitlines())))


def test_the_next_step_is_one_after_the_jobs_own_profiler(outcomes):
    assert [outcomes[order] for order in NEXT] == [["done", "1", ""]] * len(NEXT)


def test_a_step_under_the_jobs_own_profiler_is_not_traced(outcomes):
    for state, files, reason in [outcomes[order] for order in UNDER]:
        assert (state, files) == ("failed", "0")
        assert "torch.profiler of the job was at work at step" in reason


def test_a_running_trace_makes_way_and_keeps_its_steps(outcomes):
    told = "1 of 3 steps: the job has started torch.profiler after step 1"
    assert [outcomes[order] for order in RUNNING] == [["done", "1", told]] * len(RUNNING)


def test_a_trace_in_its_warm_up_makes_way(outcomes):
    state, files, reason = outcomes[WARM_UP]
    assert (state, files) == ("failed", "0")
    assert reason == "the job has started torch.profiler before a step"


def test_a_profiler_on_another_thread_waits_for_the_end_of_the_step(outcomes):
    state, files, reason = outcomes[ELSEWHERE]
    assert (state, files) == ("done", "1")
    assert "the job has started torch.profiler" in reason
