"""A job that uses torch_npu's profiler itself, before, under and after a trace of ours.

    torch_npu_profiling_job.py SOURCES DIRECTORY

Prints the state and the reason of each trace, then the calls of the compiled code.
"""

from __future__ import annotations

import sys

import torch_npu_trace

from msmon.agent.agent_log import AgentLog
from msmon.agent.steps import sources
from msmon.agent.steps.counter import StepCounter
from msmon.agent.tracing import job_profilers
from msmon.agent.tracing.backend import make_backend
from msmon.agent.tracing.pause import MonitorPause
from msmon.agent.tracing.plan import TracePlan
from msmon.agent.tracing.tracer import Tracer
from msmon.settings.trace_options import check_trace


def main() -> None:
    torch_npu_trace.prepare(sys.argv[1])
    sources.watch(StepCounter(), print, job_profilers.shared.on_import).start()
    import torch_npu.profiler

    steps = StepCounter()
    tracer = Tracer(steps, AgentLog(None), lambda: None, MonitorPause(lambda: None))

    def trace(**options: object) -> None:
        fields = {"iterations": 3, "log_file": sys.argv[2], "start_step": -1, **options}
        plan = TracePlan("t", check_trace(fields), "o")
        tracer.arm(plan, make_backend(plan), pause_monitor=False)

    def tell() -> None:
        print(tracer.progress.state, tracer.progress.reason, sep="|")

    steps.advance()
    own = torch_npu.profiler.profile(
        schedule=torch_npu.profiler.schedule(wait=0, warmup=1, active=9),
        on_trace_ready=torch_npu.profiler.tensorboard_trace_handler(
            sys.argv[2], analyse_flag=False
        ),
    )
    own.start()
    trace(start_step=2)
    steps.advance()
    tell()
    own.stop()
    trace()
    for _ in range(2):
        steps.advance()
    own.start()
    tell()
    own.stop()
    print(*torch_npu_trace.CALLS)


if __name__ == "__main__":
    main()
