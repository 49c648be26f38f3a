"""Steps of MindSpore: a callback for ``Model.train``.

model.train(epochs, dataset, callbacks=[msmon.mindspore_callback()])
"""

from __future__ import annotations

import importlib
from typing import Any

from msmon.agent.lifecycle import set_step, step
from msmon.agent.steps.counter import MAX_STEP


def mindspore_callback() -> Any:
    """Return a ``mindspore.Callback`` that counts training steps with MindSpore's own numbers.

    Raises ImportError where MindSpore is not installed.
    """
    callback_class: Any = importlib.import_module("mindspore").Callback

    class MindSporeSteps(callback_class):  # type: ignore[misc]
        """Notes the end of each training step."""

        def on_train_step_end(self, run_context: Any) -> None:
            number = run_context.original_args().get("cur_step_num")
            if isinstance(number, int) and 0 < number <= MAX_STEP:
                set_step(number - 1)
            step()

    return MindSporeSteps()
