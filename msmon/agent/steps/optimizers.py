"""Steps from PyTorch's optimizers: one per call of the one that was constructed last.

PyTorch calls a global hook after every optimizer's ``step``. With gradient accumulation
that is once per update; a step that a gradient scaler skips does not count.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary


class OptimizerSteps:
    """Decides which calls of which optimizers are training steps.

    The optimizer constructed last counts. As long as it has never been stepped, another one
    does: from its second call on, so that in a loop over two of them nothing counts twice.
    """

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._serials: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._last_serial = 0
        self._unknown = 0
        self._counting: int | None = None
        """Serial of the optimizer that counts; None: not decided yet."""
        self._seen: set[int] = set()
        self._counted_since_construction = False

    def constructed(self, optimizer: Any) -> None:
        """Note a new optimizer."""
        self._last_serial += 1
        self._serials[optimizer] = self._last_serial
        self._counted_since_construction = False

    def stepped(self, optimizer: Any) -> None:
        """Take a call of an optimizer's ``step`` that has returned."""
        serial = self._serials.get(optimizer)
        if serial is None:  # constructed before us: all of these count as older than the others
            self._unknown -= 1
            serial = self._serials[optimizer] = self._unknown
        if serial == self._counting:
            self._count(1)
        elif self._counting is None or serial > self._counting:
            self._decide(serial)

    def _decide(self, serial: int) -> None:
        """Take the first calls of an optimizer newer than the one that counts."""
        again = serial in self._seen
        self._seen.add(serial)
        newest = serial == self._last_serial or not self._last_serial
        if not newest and not again:
            return
        if self._counting is None or not self._counted_since_construction:
            self._count(2 if again else 1)
        self._counting = serial  # else the former one has counted this round already

    def _count(self, steps: int) -> None:
        self._counted_since_construction = True
        self._advance(steps)


def install(module: ModuleType, advance: Callable[[int], None]) -> None:
    """Hook into ``torch.optim.optimizer``; ``advance`` gets the number of steps made."""
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:  # before PyTorch 2.0: only msmon.step() counts
        return
    steps = OptimizerSteps(advance)
    _note_constructions(module.Optimizer, steps)

    def post_hook(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        if not _is_inner(optimizer):
            steps.stepped(optimizer)

    # what torch.compiler.disable does, without importing the compiler: the hook stays Python
    post_hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    register(post_hook)


def _note_constructions(optimizer_class: Any, steps: OptimizerSteps) -> None:
    original = optimizer_class.__init__

    @functools.wraps(original)
    def construct(self: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        steps.constructed(self)

    optimizer_class.__init__ = construct


def _is_inner(optimizer: Any) -> bool:
    """Whether this call was made by the ``step`` of a subclass, which PyTorch hooks as well."""
    hooked = [c for c in type(optimizer).__mro__ if hasattr(c.__dict__.get("step"), "hooked")]
    if len(hooked) < 2:
        return False
    wrapper = sys._getframe(2)
    outer = wrapper.f_back
    while outer is not None:
        if outer.f_code is wrapper.f_code and outer.f_locals.get("self") is optimizer:
            return True
        outer = outer.f_back
    return False
