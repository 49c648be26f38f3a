"""Which calls of which optimizers are training steps."""

from __future__ import annotations

import types

import pytest

from msmon.agent.steps.optimizers import OptimizerSteps, install


class Optimizer:
    pass


class Counting:
    def __init__(self) -> None:
        self.count = 0
        self.steps = OptimizerSteps(self.add)

    def add(self, steps: int) -> None:
        self.count += steps

    def make(self) -> Optimizer:
        optimizer = Optimizer()
        self.steps.constructed(optimizer)
        return optimizer


@pytest.fixture
def counting() -> Counting:
    return Counting()


def test_one_optimizer_counts_every_call(counting):
    optimizer = counting.make()
    for _ in range(5):
        counting.steps.stepped(optimizer)
    assert counting.count == 5


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 0, 0, 0)])
def test_of_two_in_a_loop_the_last_constructed_counts(counting, order):
    pair = (counting.make(), counting.make())
    for _ in range(5):
        for index in order:
            counting.steps.stepped(pair[index])
    assert counting.count == 5


def test_one_that_is_never_stepped_does_not_silence_the_others(counting):
    stepped, _never = counting.make(), counting.make()
    for _ in range(5):
        counting.steps.stepped(stepped)
    assert counting.count == 5


def test_a_new_one_takes_over(counting):
    first = counting.make()
    for _ in range(3):
        counting.steps.stepped(first)
    second = counting.make()
    for _ in range(4):
        counting.steps.stepped(second)
    assert counting.count == 7


def test_of_those_from_before_the_agent_one_counts(counting):
    pair = (Optimizer(), Optimizer())
    for _ in range(5):
        for optimizer in pair:
            counting.steps.stepped(optimizer)
    assert counting.count == 5


def test_an_old_pytorch_is_left_alone():
    old = types.ModuleType("torch.optim.optimizer")
    before = dict(vars(old))
    install(old, lambda _: None)
    assert vars(old) == before
