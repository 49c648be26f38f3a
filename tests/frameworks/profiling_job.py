"""A job of PyTorch that profiles by itself, beside a trace of ours.

    profiling_job.py ORDER...

An ORDER is a list of the names below, separated by commas. After each, the job makes a step. Prints
for each ORDER what status would report of its trace.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from msmon.agent.agent_log import AgentLog
from msmon.agent.steps import sources
from msmon.agent.steps.counter import StepCounter
from msmon.agent.tracing import job_profilers
from msmon.agent.tracing.backend import make_backend
from msmon.agent.tracing.pause import MonitorPause
from msmon.agent.tracing.plan import TracePlan
from msmon.agent.tracing.tracer import Tracer
from msmon.settings.trace_options import check_trace

KINDS = {
    "profile": lambda: torch.profiler.profile(),
    "warmup": lambda: torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=0, warmup=2, active=1)
    ),
    "autograd": lambda: torch.autograd.profiler.profile(),
    "itt": lambda: torch.autograd.profiler.emit_itt(),
}


class Job:
    """The steps of the job, its own profiler, and the tracer."""

    def __init__(self, directory: str) -> None:
        self.steps = StepCounter()
        self.tracer = Tracer(self.steps, AgentLog(None), lambda: None, MonitorPause(lambda: None))
        self.directory = directory
        self.own = None

    def step(self) -> None:
        x = torch.randn(32, 32, requires_grad=True)
        (x @ x).sum().backward()
        self.steps.advance()

    def trace(self, **options: object) -> None:
        options = {"iterations": 3, "start_step": -1, "log_file": self.directory, **options}
        plan = TracePlan("t", check_trace(options), "o")
        self.tracer.arm(plan, make_backend(plan), pause_monitor=False)

    def trace_warmup(self) -> None:
        self.trace(warmup=3)

    def trace_at_next(self) -> None:
        self.trace(start_step=self.steps.count + 1)

    def enter(self, kind: str) -> None:
        self.own = KINDS[kind]().__enter__()

    def elsewhere(self) -> None:
        def profile() -> None:
            with torch.profiler.profile():
                torch.randn(8).sum()

        self.other = threading.Thread(target=profile)
        self.other.start()

    def own_step(self) -> None:
        self.own.step()

    def leave(self) -> None:
        self.own.__exit__(None, None, None)

    def export(self) -> None:
        self.own.export_chrome_trace(str(Path(self.directory, "job.json")))

    def nothing(self) -> None:
        pass


def run(order: str) -> None:
    with TemporaryDirectory() as directory:
        job = Job(directory)
        for name in order.split(","):
            action, _, argument = name.partition(" ")
            getattr(job, action)(*[argument] if argument else [])
            job.step()
        job.tracer.end_early()
        progress = asdict(job.tracer.progress)
        print(progress["state"], len(progress["files"]), progress["reason"], sep="|", flush=True)


def main() -> None:
    sources.watch(StepCounter(), print, job_profilers.shared.on_import).start()
    for order in sys.argv[1:]:
        run(order)


if __name__ == "__main__":
    main()
