"""Which calls of which optimizers are training steps."""

from __future__ import annotations

import types

import pytest

from msmon.agent.steps.loops import REACH
from msmon.agent.steps.optimizers import OptimizerHooks, OptimizerSteps


class Optimizer:
    pass


class Counting:
    """Optimizers by letter. A loop is a text: "CCA" is two calls of C, then one of A."""

    def __init__(self) -> None:
        self.count = 0
        self.what = ""
        self.steps = OptimizerSteps(self.add)
        self.optimizers: dict[str, Optimizer] = {}

    def add(self, steps: int, what: str) -> None:
        assert steps > 0
        self.count += steps
        self.what = what

    def make(self, names: str) -> None:
        for name in names:
            self.optimizers[name] = Optimizer()
            self.steps.constructed(self.optimizers[name])

    def call(self, names: str) -> None:
        for name in names:
            if name not in self.optimizers:  # constructed before the agent was there
                self.optimizers[name] = Optimizer()
            self.steps.stepped(self.optimizers[name])


@pytest.fixture
def counting() -> Counting:
    return Counting()


def test_one_optimizer_counts_every_call(counting):
    counting.make("A")
    for loop in range(5):
        counting.call("A")
        assert counting.count == loop + 1
    assert counting.what == "calls of Optimizer.step()"


@pytest.mark.parametrize("constructed", ["", "AC", "CA"])
@pytest.mark.parametrize(
    "loop", ["AC", "CA", "CCCCAA", "AACCCC", "CCCCCA", "ACCC", "CACAB", "CCACCAB"]
)
def test_loops_of_several_optimizers_are_counted_whatever_their_rhythm(counting, constructed, loop):
    counting.make(constructed)
    for _ in range(30):
        counting.call(loop)
    assert counting.count == 30
    before = counting.count
    for done in range(10):
        counting.call(loop)
        assert counting.count == before + done + 1
    assert counting.what == f"loops of {len(set(loop))} optimizers"


def test_an_optimizer_for_each_parameter(counting):
    optimizers = [Optimizer() for _ in range(300)]
    for _ in range(6):
        for optimizer in optimizers:
            counting.steps.stepped(optimizer)
    assert counting.count == 6


def test_one_that_is_never_stepped_does_not_silence_the_others(counting):
    counting.make("AB")
    counting.call("AAAAA")
    assert counting.count == 5


def test_a_new_one_takes_over(counting):
    counting.make("A")
    counting.call("AAA")
    counting.make("B")
    counting.call("BBBB")
    assert counting.count == 7


def test_a_new_one_joins_the_loop(counting):
    counting.make("A")
    counting.call("AAA")
    counting.make("B")
    counting.call("AB" * 5)
    assert counting.count == 8


def test_a_phase_with_one_of_two_counts_its_calls(counting):
    counting.make("AB")
    counting.call("AB" * 50)
    counting.call("B" * 50)
    assert counting.count == 100


def test_one_that_is_called_now_and_then_is_not_in_use(counting):
    counting.make("AX")
    for _ in range(5):
        counting.call("A" * 100 + "X")
    assert counting.count == 500


def test_one_that_is_made_anew_in_each_loop_is_not_in_use(counting):
    for _ in range(20):
        counting.make("X")
        counting.call("XXXA")
    assert counting.count == pytest.approx(20, abs=3)


def test_little_is_kept_of_optimizers_that_are_gone(counting):
    for _ in range(20 * REACH):
        counting.make("X")
        counting.call("X")
    assert counting.count == 20 * REACH


def test_an_old_pytorch_is_left_alone():
    old = types.ModuleType("torch.optim.optimizer")
    before = dict(vars(old))
    OptimizerHooks(lambda steps, what: None).hook_optimizers(old)
    assert vars(old) == before
