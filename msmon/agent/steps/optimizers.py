"""Steps from PyTorch's optimizers: which of their calls are the steps of the training.

PyTorch calls a global hook after every optimizer's ``step()``. A job may have several
optimizers, so the calls of one of them are chosen as the steps; torch_npu chooses the one
that was constructed last, and so do we. Examples:

* One optimizer: each of its calls is a step. With gradient accumulation that is one step per
  update. A call that a gradient scaler leaves out because of infinities is no step.
* A GAN, generator and discriminator in turn: the discriminator's optimizer was constructed
  last, so its calls count and the generator's don't.
* A second optimizer is constructed and never used (say, for a later phase): after the first
  has been called twice, it counts until the second is called.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary


class OptimizerSteps:
    """Chooses the optimizer whose calls are the steps. Used on the thread that trains.

    Optimizers have serials in the order of their construction, and the highest one that is in
    use counts. An optimizer that is not the newest is chosen only at its *second* call: in a
    loop "A, B, A, B" in which B is the newest, A's first call may be followed by B's, and the
    round would count twice. When A is called again before B was, B is not in use; A's two
    calls were then two steps.

    ``advance`` is called with the number of steps that a call stands for, 1 or 2.
    """

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._serials: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._last_serial = 0
        self._unknown = 0
        self._counting: int | None = None
        """Serial of the optimizer that counts; None: not chosen yet."""
        self._seen: set[int] = set()
        """Serials of optimizers that were called before they were chosen."""
        self._counted_since_construction = False
        """Whether a step was counted after the newest optimizer was constructed."""

    def constructed(self, optimizer: Any) -> None:
        """Note a new optimizer."""
        self._last_serial += 1
        self._serials[optimizer] = self._last_serial
        self._counted_since_construction = False

    def stepped(self, optimizer: Any) -> None:
        """Take a call of an optimizer's ``step`` that has returned."""
        serial = self._serials.get(optimizer)
        if serial is None:  # constructed before the hook was there: older than all others
            self._unknown -= 1
            serial = self._serials[optimizer] = self._unknown
        if serial == self._counting:
            self._count(1)
        elif self._counting is None or serial > self._counting:
            self._consider(serial)

    def _consider(self, serial: int) -> None:
        """Choose an optimizer, newer than the one that counts so far, or wait for its next call."""
        again = serial in self._seen
        self._seen.add(serial)
        newest = serial == self._last_serial or not self._last_serial
        if not newest and not again:
            return
        if self._counting is None or not self._counted_since_construction:
            self._count(2 if again else 1)
        # else the optimizer that counted until now has counted this round of the loop already
        self._counting = serial

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

    # torch.compiler.disable sets this mark too, but would import the compiler: without it,
    # torch.compile would take the hook into the compiled step
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
