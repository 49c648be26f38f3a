"""In which order the stages of a pipeline compute: one forward, one backward."""

from __future__ import annotations

from collections.abc import Iterator


def order_of(stage: int, stages: int, micro_batches: int) -> Iterator[tuple[bool, int]]:
    """Yield (whether forward, micro-batch) in the order in which a stage computes them."""
    ahead = min(stages - stage - 1, micro_batches)
    for number in range(ahead):
        yield True, number
    for number in range(micro_batches - ahead):
        yield True, number + ahead
        yield False, number
    for number in range(micro_batches - ahead, micro_batches):
        yield False, number


def tasks_of(stages: int, micro_batches: int) -> list[tuple[int, bool, int]]:
    """Return (stage, whether forward, micro-batch) so that each one follows what it waits for."""
    waiting = [list(order_of(stage, stages, micro_batches)) for stage in range(stages)]
    done: set[tuple[int, bool, int]] = set()
    tasks: list[tuple[int, bool, int]] = []
    while any(waiting):
        for stage, left in enumerate(waiting):
            while left and _needed(stage, *left[0], stages) <= done:
                task = (stage, *left.pop(0))
                done.add(task)
                tasks.append(task)
    return tasks


def _needed(stage: int, forward: bool, number: int, stages: int) -> set[tuple[int, bool, int]]:
    if forward:
        return {(stage - 1, True, number)} if stage else set()
    return {(stage + 1, False, number)} if stage + 1 < stages else {(stage, True, number)}
