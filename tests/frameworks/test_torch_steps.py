"""Steps counted from real PyTorch optimizers."""

from __future__ import annotations

import importlib

import pytest

from msmon.agent.steps import optimizers as optimizer_steps
from msmon.agent.steps.counter import StepCounter

pytestmark = pytest.mark.xdist_group("torch_steps")

torch = pytest.importorskip("torch", reason="PyTorch is not installed (scripts/test --full has it)")


@pytest.fixture(scope="module")
def steps() -> StepCounter:
    counter = StepCounter()
    module = importlib.import_module("torch.optim.optimizer")
    optimizer_steps.install(module, counter.advance_by_hook)
    return counter


@pytest.fixture
def parameters():
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return [parameter]


class Inherited(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


def test_a_subclass_that_calls_its_base_counts_once(steps, parameters):
    torch.optim.SGD(parameters, 0.1).step()
    optimizer = Inherited(parameters, 0.1)
    before = steps.count
    for _ in range(3):
        optimizer.step()
    assert steps.count == before + 3


def test_schedulers_and_closures_do_not_disturb(steps, parameters):
    optimizer = torch.optim.SGD(parameters, 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = steps.count
    for _ in range(3):
        optimizer.step(lambda: parameters[0].sum())
        scheduler.step()
    assert steps.count == before + 3
