"""Where steps come from when the job does not call ``msmon.step()`` itself.

Each source is hooked into a framework when that is imported. As soon as the job calls
``msmon.step()``, only that counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from msmon.agent.steps import optimizers as optimizer_steps
from msmon.agent.steps.counter import StepCounter
from msmon.agent.steps.import_watch import ImportWatch, OnImport
from msmon.threads import thread_id

WORKERS = {
    "vllm.v1.worker.gpu_worker": "Worker",
    "vllm_ascend.worker.worker_v1": "NPUWorker",
    "vllm_ascend.worker.worker": "NPUWorker",
}
"""Module → class of vLLM (0.23) and vllm-ascend (0.11 and 0.23) whose ``execute_model`` is one
step: a forward of the whole model. A call without tokens to compute is no step. Where vLLM samples
in a call of its own, that time counts for the next step."""

_inside: set[int] = set()
"""Threads that are in a worker's ``execute_model``; each writes its own number."""


def watch(
    steps: StepCounter,
    report: Callable[[str], None],
    others: Mapping[str, OnImport] = MappingProxyType({}),
) -> ImportWatch:
    """Return the watch that hooks every source into this process; it must be started.

    ``others``: what else is to be hooked when it is imported.
    """

    def hook_optimizers(module: ModuleType) -> None:
        optimizer_steps.install(module, steps.advance_by_hook)

    on_import: dict[str, OnImport] = {**others, "torch.optim.optimizer": hook_optimizers}
    for name, worker in WORKERS.items():
        on_import[name] = functools.partial(_hook_worker, worker, steps)
    return ImportWatch(on_import, report)


def _hook_worker(name: str, steps: StepCounter, module: ModuleType) -> None:
    worker = getattr(module, name, None)
    original = getattr(worker, "execute_model", None)
    if worker is None or original is None:
        return

    @functools.wraps(original)
    def execute_model(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if thread_id() in _inside:  # a subclass calls its base's
            return original(self, *arguments, **keywords)
        _inside.add(thread_id())
        try:
            result = original(self, *arguments, **keywords)
        finally:
            _inside.discard(thread_id())
        if _computes(arguments, keywords):
            steps.advance_by_hook(1)
        return result

    worker.execute_model = execute_model


def _computes(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Whether a call of ``execute_model`` has tokens to compute; some only end requests."""
    output = arguments[0] if arguments else keywords.get("scheduler_output")
    return bool(getattr(output, "total_num_scheduled_tokens", 1))
