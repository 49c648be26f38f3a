"""Steps from PyTorch's optimizers, and from the gradient scalers that may leave a call out.

PyTorch calls a global hook after every optimizer's ``step()``. Which of these calls are steps
is decided in :mod:`msmon.agent.steps.loops`. With gradient accumulation there is one step per
update.

A gradient scaler (``torch.amp.GradScaler`` and those of torch_npu) does not call the optimizer
when a gradient is infinite or no number. The loop is over all the same, so such a call of the
scaler counts as one of the optimizer.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from msmon.agent.steps.loops import LoopCounter


class OptimizerSteps:
    """Tells the optimizers of a process apart. Used on the thread that trains.

    ``advance`` is called with the number of steps that have just ended, and what is counted as a
    step, for people.
    """

    def __init__(self, advance: Callable[[int, str], None]) -> None:
        self._advance = advance
        self._loops = LoopCounter(self._ended)
        self._serials: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._uncalled: WeakSet[Any] = WeakSet()
        self._last_serial = 0
        self._last_name = ""
        self.calls = 0
        """Calls of optimizers so far."""

    def constructed(self, optimizer: Any) -> None:
        """Note a new optimizer."""
        self._number(optimizer)
        self._uncalled.add(optimizer)
        self._loops.constructed()

    def stepped(self, optimizer: Any) -> None:
        """Take a call of an optimizer's ``step`` that has returned."""
        self.calls += 1
        self._uncalled.discard(optimizer)
        self._last_name = type(optimizer).__name__
        serial = self._serials.get(optimizer)
        if serial is None:  # constructed before the hook was there
            serial = self._number(optimizer)
        self._loops.called(serial, len(self._serials), len(self._uncalled) > 0)

    def _number(self, optimizer: Any) -> int:
        self._last_serial += 1
        self._serials[optimizer] = self._last_serial
        return self._last_serial

    def _ended(self, steps: int) -> None:
        several = self._loops.optimizers_per_loop
        what = (
            f"loops of {several} optimizers"
            if several > 1
            else f"calls of {self._last_name}.step()"
        )
        self._advance(steps, what)


class OptimizerHooks:
    """Hooks into PyTorch, and calls :class:`OptimizerSteps`. Used on the thread that trains."""

    def __init__(self, advance: Callable[[int, str], None]) -> None:
        self._steps = OptimizerSteps(advance)

    def hook_optimizers(self, module: ModuleType) -> None:
        """Hook into ``torch.optim.optimizer``."""
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is None:  # before PyTorch 2.0: only msmon.step() counts
            return
        _note_constructions(module.Optimizer, self._steps)

        def post_hook(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
            if not _is_inner(optimizer):
                self._steps.stepped(optimizer)

        # torch.compiler.disable sets this mark too, but would import the compiler: without it,
        # torch.compile would take the hook into the compiled step
        post_hook._torchdynamo_disable = True  # type: ignore[attr-defined]
        register(post_hook)

    def hook_scaler(self, name: str, module: ModuleType) -> None:
        """Hook into the class ``name`` of a module, a gradient scaler."""
        scaler: Any = getattr(module, name, None)
        original = vars(scaler).get("step") if scaler is not None else None
        if original is None:  # what it inherits is hooked already
            return
        steps = self._steps

        @functools.wraps(original)
        def step(self: Any, optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            before = steps.calls
            result = original(self, optimizer, *arguments, **keywords)
            if steps.calls == before:
                steps.stepped(optimizer)
            return result

        scaler.step = step


def _note_constructions(optimizer_class: Any, steps: OptimizerSteps) -> None:
    original = optimizer_class.__init__

    @functools.wraps(original)
    def construct(self: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        steps.constructed(self)

    optimizer_class.__init__ = construct


def _is_inner(optimizer: Any) -> bool:
    """Whether this call was made by the ``step`` of a subclass, which PyTorch hooks as well.

    Then the hook runs twice for one step: ``super().step()`` inside, the subclass's own call
    outside. Both pass PyTorch's wrapper, so the wrapper's code further up the stack, with the
    same optimizer, tells the inner call.
    """
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
