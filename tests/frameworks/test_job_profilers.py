"""A job that uses PyTorch's profilers itself, while traces are asked for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch is not installed (scripts/test --full has it)",
)

JOB = Path(__file__).with_name("profiling_job.py")


KINDS = ("profile", "autograd", "warmup", "itt")


def outcomes(*orders: str) -> list[list[str]]:
    """Return state, number of files and reason of the trace of a job that makes these calls."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(JOB), *orders],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return [line.split("|") for line in done.stdout.splitlines()]


def test_the_next_step_is_one_after_the_jobs_own_profiler():
    after = "trace,nothing,leave,nothing,nothing,nothing"
    orders = (
        f"enter profile,{after},export",
        f"enter autograd,{after},export",
        f"enter warmup,{after}",
    )
    assert outcomes(*orders) == [["done", "1", ""]] * len(orders)


def test_a_step_under_the_jobs_own_profiler_is_not_traced():
    orders = [f"enter {own},trace_at_next,nothing,nothing,leave,nothing" for own in KINDS]
    for state, files, reason in outcomes(*orders):
        assert (state, files) == ("failed", "0")
        assert "torch.profiler of the job was at work at step" in reason


def test_a_running_trace_makes_way_and_keeps_its_steps():
    orders = (
        "trace,nothing,enter profile,nothing,leave,export",
        "trace,nothing,enter autograd,nothing,leave,export",
        "trace,nothing,enter itt,nothing,leave",
        "trace,nothing,enter warmup,own_step,own_step,own_step,leave,export",
    )
    told = "1 of 3 steps: the job has started torch.profiler after step 1"
    assert outcomes(*orders) == [["done", "1", told]] * len(orders)


def test_a_trace_in_its_warm_up_makes_way():
    ((state, files, reason),) = outcomes("trace_warmup,nothing,enter profile,nothing,leave,export")
    assert (state, files) == ("failed", "0")
    assert reason == "the job has started torch.profiler before a step"


def test_a_profiler_on_another_thread_waits_for_the_end_of_the_step():
    ((state, files, reason),) = outcomes("trace,nothing,elsewhere,nothing,nothing")
    assert (state, files) == ("done", "1")
    assert "the job has started torch.profiler" in reason
