"""Steps counted from real PyTorch optimizers."""

from __future__ import annotations

import pytest

from msmon.agent.steps import sources
from msmon.agent.steps.counter import StepCounter

pytestmark = pytest.mark.xdist_group("torch_steps")


@pytest.fixture(scope="module")
def torch():
    """PyTorch, imported by the one worker that runs these tests: it takes seconds."""
    return pytest.importorskip(
        "torch", reason="PyTorch is not installed (scripts/test --full has it)"
    )


@pytest.fixture(scope="module")
def steps(torch) -> StepCounter:
    counter = StepCounter()
    sources.watch(counter, pytest.fail).start()
    return counter


@pytest.fixture
def parameters(torch):
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return [parameter]


def test_a_subclass_that_calls_its_base_counts_once(torch, steps, parameters):
    class Inherited(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    torch.optim.SGD(parameters, 0.1).step()
    optimizer = Inherited(parameters, 0.1)
    before = steps.count
    for _ in range(3):
        optimizer.step()
    assert steps.count == before + 3


def test_schedulers_and_closures_do_not_disturb(torch, steps, parameters):
    optimizer = torch.optim.SGD(parameters, 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = steps.count
    for _ in range(3):
        optimizer.step(lambda: parameters[0].sum())
        scheduler.step()
    assert steps.count == before + 3


@pytest.mark.parametrize("enabled", [True, False])
def test_a_step_that_the_gradient_scaler_leaves_out_counts(torch, steps, parameters, enabled):
    optimizer = torch.optim.SGD(parameters, 0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=enabled)
    before = steps.count
    for gradient in (1.0, float("inf"), 1.0, float("nan"), float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((parameters[0] * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert steps.count == before + 6


def test_a_critic_four_times_and_an_actor_twice_are_one_step(torch, steps, parameters):
    actor, critic = torch.optim.SGD(parameters, 0.1), torch.optim.Adam(parameters, 0.1)
    before = steps.count
    for loop in range(20):
        for optimizer, times in ((critic, 4), (actor, 2)):
            for _ in range(times):
                optimizer.step()
        assert loop < 10 or steps.count == before + loop + 1
    assert steps.counts == "loops of 2 optimizers"
