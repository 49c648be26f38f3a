"""Frameworks that are hooked when they are imported, and the job's own step() that wins."""

from __future__ import annotations

import sys
import textwrap

import pytest

from msmon.agent.steps import sources as step_sources
from msmon.agent.steps.counter import Source, StepCounter

WORKER = """
    class Base:
        def execute_model(self, request):
            return request

    class Worker(Base):
        def execute_model(self, request):
            return super().execute_model(request) + 1
"""


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    """A package of vLLM's shape, not imported yet; it is forgotten afterwards."""
    package = tmp_path / "vllm" / "v1" / "worker"
    package.mkdir(parents=True)
    (package / "gpu_worker.py").write_text(textwrap.dedent(WORKER))
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def test_each_forward_of_a_worker_is_a_step(vllm):
    steps = StepCounter()
    step_sources.watch(steps, pytest.fail).start()
    from vllm.v1.worker.gpu_worker import Worker

    assert [Worker().execute_model(number) for number in range(3)] == [1, 2, 3]
    assert steps.count == 3


def test_a_call_without_tokens_is_no_step(vllm):
    steps = StepCounter()
    step_sources.watch(steps, pytest.fail).start()
    from vllm.v1.worker.gpu_worker import Worker

    class Output(int):
        total_num_scheduled_tokens = 0

    assert Worker().execute_model(Output(1)) == 2
    assert steps.count == 0


def test_steps_of_the_job_itself_silence_the_hooks():
    steps = StepCounter()
    steps.advance_by(Source.OPTIMIZER, 1, "calls")
    steps.advance_explicitly()  # of the same iteration
    assert steps.count == 1
    steps.advance_by(Source.OPTIMIZER, 1, "calls")
    steps.advance()
    assert steps.count == 2
    assert steps.counts == "calls of msmon.step()"


def test_a_framework_that_only_reports_its_number_counts_where_nobody_else_does():
    steps = StepCounter()
    steps.report(7, "reports")
    steps.report(9, "reports")
    steps.report(9, "reports")
    assert (steps.count, steps.counts) == (9, "reports")
    steps.advance_by(Source.FRAMEWORK, 1, "calls")  # the one reported last
    steps.advance_by(Source.FRAMEWORK, 1, "calls")
    steps.report(50, "reports")
    assert (steps.count, steps.counts) == (10, "calls")


TORCH_NPU = """
    def step():
        pass

    def set_state(state_step):
        pass
"""

TORCH_NPU_HOOK = """
    from torch_npu.profiler.dynamic_profile import step as dp_step

    def hook():
        dp_step()
"""


@pytest.fixture
def framework(tmp_path, monkeypatch):
    """Writes modules, not imported yet; they are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    finders, before = list(sys.meta_path), set(sys.modules)

    def write(name: str, text: str) -> None:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    yield write
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_torch_npus_dynamic_profiler_counts_what_the_job_calls(framework):
    framework("torch_npu.profiler.dynamic_profile", TORCH_NPU)
    framework("torch_npu.profiler._non_intrusive_profile", TORCH_NPU_HOOK)
    steps = StepCounter()
    step_sources.watch(steps, pytest.fail).start()
    from torch_npu.profiler import _non_intrusive_profile, dynamic_profile

    _non_intrusive_profile.hook()  # torch_npu's own, in an optimizer that is counted anyway
    assert steps.count == 0
    for _ in range(3):
        dynamic_profile.step()
    dynamic_profile.set_state({"cur_step": 500})
    dynamic_profile.step()
    assert steps.count == 501
    assert steps.counts == "calls of torch_npu's dynamic_profile.step()"


MINDSPORE = """
    class Base:
        def step(self):
            pass

        def step_end(self, run_context):
            pass

    class DynamicProfilerMonitor(Base):
        def step_end(self, run_context):
            super().step_end(run_context)
"""


def test_mindspores_dynamic_profiler_counts_its_steps_also_as_a_callback(framework):
    framework("mindspore.profiler.dynamic_profiler", MINDSPORE)
    steps = StepCounter()
    step_sources.watch(steps, pytest.fail).start()
    from mindspore.profiler.dynamic_profiler import DynamicProfilerMonitor

    monitor = DynamicProfilerMonitor()
    monitor.step()
    monitor.step()
    monitor.step_end(None)
    assert steps.count == 3


def test_steps_go_on_from_a_checkpoint():
    steps = StepCounter()
    steps.set(5000)
    steps.advance_explicitly()
    assert steps.count == 5001
