"""Frameworks that are hooked when they are imported, and the job's own step() that wins."""

from __future__ import annotations

import sys
import textwrap

import pytest

from msmon.agent.steps import sources as step_sources
from msmon.agent.steps.counter import StepCounter

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
    steps.advance_by_hook(1)
    steps.advance_explicitly()  # of the same iteration
    assert steps.count == 1
    steps.advance_by_hook(1)
    steps.advance()
    assert steps.count == 2


def test_steps_go_on_from_a_checkpoint():
    steps = StepCounter()
    steps.set(5000)
    steps.advance_explicitly()
    assert steps.count == 5001
