"""Where steps come from when the job does not call ``msmon.step()`` itself.

Each source is hooked into a framework when that is imported. Which of them counts is decided in
:class:`~msmon.agent.steps.counter.Source`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from msmon.agent.steps.counter import MAX_STEP, Source, StepCounter
from msmon.agent.steps.import_watch import ImportWatch, OnImport
from msmon.agent.steps.optimizers import OptimizerHooks
from msmon.threads import thread_id

WORKERS = {
    "vllm.v1.worker.gpu_worker": "Worker",
    "vllm_ascend.worker.worker_v1": "NPUWorker",
    "vllm_ascend.worker.worker": "NPUWorker",
}
"""Module → class of vLLM (0.23) and vllm-ascend (0.11 and 0.23) whose ``execute_model`` is one
step: a forward of the whole model. A call without tokens to compute is no step. Where vLLM samples
in a call of its own, that time counts for the next step."""

SCALERS = {
    "torch.amp.grad_scaler": "GradScaler",
    "torch.cuda.amp.grad_scaler": "GradScaler",
    "torch_npu.npu.amp.grad_scaler": "GradScaler",
    "torch_npu.npu.amp.sharded_grad_scaler": "_ShardedGradScaler",
}
"""Module → gradient scaler, whose ``step`` may leave out the optimizer's."""

TORCH_NPU = "torch_npu.profiler.dynamic_profile"
"""Its ``step()`` is what msMonitor's documentation tells loops without an optimizer of PyTorch to
call. Its own hook in optimizers, in the module below, calls it as well."""
TORCH_NPU_HOOK = "torch_npu.profiler._non_intrusive_profile"
MINDSPORE = "mindspore.profiler.dynamic_profiler"

_inside: set[int] = set()
"""Threads that are in a hooked method; each writes its own number."""


def watch(
    steps: StepCounter,
    report: Callable[[str], None],
    others: Mapping[str, OnImport] = MappingProxyType({}),
) -> ImportWatch:
    """Return the watch that hooks every source into this process; it must be started.

    ``others``: what else is to be hooked when it is imported.
    """
    optimizers = OptimizerHooks(functools.partial(steps.advance_by, Source.OPTIMIZER))
    on_import: dict[str, OnImport] = {
        **others,
        "torch.optim.optimizer": optimizers.hook_optimizers,
        TORCH_NPU: functools.partial(_hook_torch_npu, steps),
        MINDSPORE: functools.partial(_hook_mindspore, steps),
    }
    for name, scaler in SCALERS.items():
        on_import[name] = functools.partial(optimizers.hook_scaler, scaler)
    for name, worker in WORKERS.items():
        on_import[name] = functools.partial(_hook_worker, worker, steps)
    return ImportWatch(on_import, report)


def _hook_worker(name: str, steps: StepCounter, module: ModuleType) -> None:
    worker = getattr(module, name, None)

    def ended(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if _computes(arguments, keywords):
            steps.advance_by(Source.WORKER, 1, f"calls of {name}.execute_model()")

    _hook_method(worker, "execute_model", ended)


def _computes(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Whether a call of ``execute_model`` has tokens to compute; some only end requests."""
    output = arguments[0] if arguments else keywords.get("scheduler_output")
    return bool(getattr(output, "total_num_scheduled_tokens", 1))


def _hook_mindspore(steps: StepCounter, module: ModuleType) -> None:
    monitor = getattr(module, "DynamicProfilerMonitor", None)

    def ended(_arguments: tuple[Any, ...], _keywords: dict[str, Any]) -> None:
        steps.advance_by(Source.FRAMEWORK, 1, "steps of MindSpore's DynamicProfilerMonitor")

    for name in ("step", "step_end"):  # the second where it is a callback of Model.train
        _hook_method(monitor, name, ended)


def _hook_method(owner: Any, name: str, ended: Callable[..., None]) -> None:
    """Have ``ended`` called, with the arguments, after each call of a method of a class."""
    original = getattr(owner, name, None)
    if owner is None or original is None:
        return

    @functools.wraps(original)
    def hooked(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if thread_id() in _inside:  # a subclass calls its base's
            return original(self, *arguments, **keywords)
        _inside.add(thread_id())
        try:
            result = original(self, *arguments, **keywords)
        finally:
            _inside.discard(thread_id())
        ended(arguments, keywords)
        return result

    setattr(owner, name, hooked)


def _hook_torch_npu(steps: StepCounter, module: ModuleType) -> None:
    """Hook into ``dynamic_profile.step`` and ``set_state``, which goes on from a checkpoint."""
    step, set_state = getattr(module, "step", None), getattr(module, "set_state", None)
    if step is not None:

        @functools.wraps(step)
        def hooked_step() -> Any:
            result = step()
            if sys._getframe(1).f_globals.get("__name__") != TORCH_NPU_HOOK:
                steps.advance_by(Source.FRAMEWORK, 1, "calls of torch_npu's dynamic_profile.step()")
            return result

        module.step = hooked_step  # type: ignore[attr-defined]
    if set_state is not None:

        @functools.wraps(set_state)
        def hooked_set_state(state_step: Any) -> Any:
            result = set_state(state_step)
            count = state_step.get("cur_step") if isinstance(state_step, dict) else None
            if isinstance(count, int) and 0 <= count <= MAX_STEP and not steps.explicit:
                steps.set(count)
            return result

        module.set_state = hooked_set_state  # type: ignore[attr-defined]
