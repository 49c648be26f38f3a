"""Profilers that the job starts by itself, so that no trace of ours meets one.

A process has one place for a profiler of PyTorch, and one for those of torch_npu and MindSpore.
Whoever stops a profiler there stops the latest, be it another's. The other then reads results
that it does not have, which ends the process. Example: the job enters ``torch.profiler.profile``
while a trace runs, and the trace ends first. Then the job's ``export_chrome_trace`` dies with
SIGSEGV, in PyTorch 2.13 and older ones.

So the starts and ends of profilers are noted, by hooks in the frameworks. A trace does not begin
while one is at work (also in its warm-up, of which PyTorch tells nobody), and it makes way before
one starts.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakSet

from msmon.agent.steps.import_watch import OnImport

TORCH = "torch.profiler"
TORCH_NPU = "torch_npu.profiler"
MINDSPORE = "mindspore.profiler"

_TORCH_ANNOTATIONS = ("emit_itt", "emit_nvtx")
"""Classes of torch.autograd.profiler that take the place of a profiler as well."""


class JobProfilers:
    """The job's own profilers in this process.

    ``_at_work`` is written by the threads on which the job starts and ends them; ``is_ours``
    and ``make_way`` by the thread that starts the agent.
    """

    def __init__(self) -> None:
        self.forget_traces()
        self._at_work: WeakSet[Any] = WeakSet()

    def forget_traces(self) -> None:
        """Note that no trace of ours runs in this process, which was just forked."""
        self.is_ours: Callable[[], bool] = bool
        """Whether the calling thread is in a call of a trace of ours."""
        self.make_way: Callable[[str], None] = lambda name: None
        """Called with the name of a profiler that the job is about to start, on its thread."""

    def at_work(self) -> str:
        """Return the name of a profiler of the job that warms up or records; empty: none.

        To be asked while no trace of ours runs.
        """
        for profiler in list(self._at_work):
            return TORCH_NPU if type(profiler).__module__.startswith("torch_npu") else TORCH
        torch = sys.modules.get("torch.autograd.profiler")
        if torch is not None and (getattr(torch, "_is_profiler_enabled", False) or torch_is_on()):
            return TORCH
        mindspore = sys.modules.get("mindspore.profiler.profiler_interface")
        interface = getattr(mindspore, "ProfilerInterface", None)
        return MINDSPORE if getattr(interface, "is_initialized", False) is True else ""

    @property
    def on_import(self) -> dict[str, OnImport]:
        """Module → what hooks into it once it has been imported."""
        return {
            "torch.autograd.profiler": self._hook_torch,
            "torch.autograd.profiler_legacy": self._hook_legacy,
            "torch_npu.profiler.profiler_interface": self._hook_torch_npu,
            "mindspore.profiler.profiler_interface": self._hook_mindspore,
        }

    # --- the hooks ----------------------------------------------------------------------

    def _hook_torch(self, module: ModuleType) -> None:
        starts = ("_prepare_trace", "_start_trace", "__enter__")
        self._hook(module, "profile", starts, "__exit__", TORCH)
        for name in _TORCH_ANNOTATIONS:
            self._hook(module, name, ("__enter__",), "__exit__", TORCH)

    def _hook_legacy(self, module: ModuleType) -> None:
        self._hook(module, "profile", ("__enter__",), "__exit__", TORCH)

    def _hook_torch_npu(self, module: ModuleType) -> None:
        self._hook(module, "_ProfInterface", ("init_trace",), "finalize_trace", TORCH_NPU)

    def _hook_mindspore(self, module: ModuleType) -> None:
        interface = getattr(module, "ProfilerInterface", None)
        original = vars(interface).get("init") if interface is not None else None
        if not isinstance(original, classmethod):
            return
        init = original.__func__

        @functools.wraps(init)
        def hooked(owner: Any) -> Any:
            if not owner.is_initialized:
                self._is_starting(MINDSPORE)
            return init(owner)

        interface.init = classmethod(hooked)  # type: ignore[union-attr]

    def _hook(
        self, module: ModuleType, owner: str, starts: tuple[str, ...], end: str, name: str
    ) -> None:
        """Have the methods ``starts`` and ``end`` of a class say so before and after."""
        cls = getattr(module, owner, None)
        methods = vars(cls) if cls is not None else {}
        for method in starts:
            if method in methods:
                setattr(cls, method, self._starting(methods[method], name))
        if end in methods:
            setattr(cls, end, self._ending(methods[end]))

    def _starting(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def hooked(profiler: Any, *arguments: Any, **keywords: Any) -> Any:
            if getattr(profiler, "enabled", True) and self._is_starting(name):
                self._at_work.add(profiler)
            return original(profiler, *arguments, **keywords)

        return hooked

    def _ending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def hooked(profiler: Any, *arguments: Any, **keywords: Any) -> Any:
            try:
                return original(profiler, *arguments, **keywords)
            finally:
                self._at_work.discard(profiler)

        return hooked

    def _is_starting(self, name: str) -> bool:
        """Have a trace of ours make way for a profiler of the job; False if it is our own."""
        if self.is_ours():
            return False
        with contextlib.suppress(Exception):  # boundary: the job's profiler must start
            self.make_way(name)
        return True


def torch_is_on() -> bool:
    """Whether a profiler of PyTorch records on the calling thread, whoever has started it."""
    enabled = getattr(sys.modules.get("torch.autograd"), "_profiler_enabled", None)
    return enabled is not None and bool(enabled())


shared = JobProfilers()
"""Those of this process."""
