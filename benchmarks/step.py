"""Time that msmon adds to a training step: ``msmon.step()``, or the hook after an optimizer.

No trace is running.

    python benchmarks/step.py

The baseline is a Python function that only counts. Ends with RATIO lines, bigger is better: the
time of that function divided by the time of msmon's.
"""

from __future__ import annotations

import timeit

from msmon.agent import lifecycle
from msmon.agent.steps.optimizers import OptimizerSteps

CALLS = 300_000
ROUNDS = 7


class Counter:
    """The baseline: what a job could write itself."""

    count = 0


def count() -> None:
    """Add one."""
    Counter.count += 1


class Optimizer:
    """Stands for an optimizer of PyTorch."""


def nanoseconds(function: object) -> float:
    """Return the time of a call in ns: the smallest mean of several rounds."""
    timer = timeit.Timer("function()", globals={"function": function})
    return min(timer.repeat(ROUNDS, CALLS)) / CALLS * 1e9


def main() -> None:
    """Measure and print."""
    lifecycle.step()
    bare_ns, step_ns = nanoseconds(count), nanoseconds(lifecycle.step)
    optimizer = Optimizer()
    counter = type(lifecycle._steps)()
    steps = OptimizerSteps(counter.advance_by_hook)
    steps.constructed(optimizer)
    hook_ns = nanoseconds(lambda: steps.stepped(optimizer))
    print(f"a function that counts   {bare_ns:7.0f} ns")
    print(f"msmon.step()             {step_ns:7.0f} ns")
    print(f"hook after an optimizer  {hook_ns:7.0f} ns")
    print(f"RATIO step_over_bare_call {bare_ns / step_ns:.3f}")
    print(f"RATIO optimizer_hook_over_bare_call {bare_ns / hook_ns:.3f}")


if __name__ == "__main__":
    main()
