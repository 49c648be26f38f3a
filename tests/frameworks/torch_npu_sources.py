"""Makes torch_npu's own Python modules importable without its compiled code and without a device.

``install(directory)`` takes the directory of an unpacked wheel. torch_npu.profiler with its dynamic
profiler, and the parts of torch_npu.utils that it uses, are the wheel's files. The package's
``__init__`` doesn't run, because it registers the device with PyTorch. ``torch_npu._C`` and
``torch_npu.npu`` are empty modules. ``torch_npu.profiler.profile`` only records its calls.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

SHELLS = (
    *("torch_npu._C", "torch_npu._C._profiler", "torch_npu.npu", "torch_npu.npu.mstx"),
    *("torch_npu.npu.utils", "torch_npu.utils.collect_env"),
)


class Shell(ModuleType):
    """A module with every attribute that is asked for: classes and functions that do nothing."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {"__init__": _accept, "__getattr__": _nothing})
        setattr(self, name, value)
        return value


def _accept(self: object, *arguments: Any, **keywords: Any) -> None:
    pass


def _nothing(self: object, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *arguments, **keywords: None


class Mstx:
    """``torch_npu.npu.mstx`` while no profiler has enabled it."""

    @staticmethod
    def range_start(message: str, stream: object = None) -> int:
        return 0

    @staticmethod
    def range_end(range_id: int) -> None:
        pass


class RecordedProfile:
    """Replaces ``torch_npu.profiler.profile``. ``calls`` has the calls of the dynamic profiler."""

    calls: list[str] = []  # noqa: RUF012
    options: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        RecordedProfile.options = options

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            RecordedProfile.calls.append(name)

        return call


def install(directory: str) -> None:
    """Let ``import torch_npu.profiler`` find the wheel's files."""
    import torch  # noqa: F401  the real one

    package = _package("torch_npu", Path(directory, "torch_npu"))
    _package("torch_npu.utils", Path(directory, "torch_npu", "utils"))
    # The __init__ of utils patches PyTorch for the device. Only this of it is needed here.
    sys.modules["torch_npu.utils"]._should_print_warning = lambda: True  # type: ignore[attr-defined]
    for name in SHELLS:
        parent, _, child = name.rpartition(".")
        sys.modules[name] = Shell(name)
        setattr(sys.modules[parent], child, sys.modules[name])
    sys.modules["torch_npu.npu"].mstx = Mstx  # type: ignore[attr-defined]
    sys.modules["torch_npu.npu.mstx"].mstx = Mstx  # type: ignore[attr-defined]
    package.__version__ = "0"  # type: ignore[attr-defined]


def start(directory: str, memory_name: str) -> type[RecordedProfile]:
    """Do what ``import torch_npu`` does with MSMONITOR_USE_DAEMON=1. It forks the helper.

    Shared memory gets the given name, so that jobs of other tests don't use the same.
    """
    wanted = os.environ.pop("MSMONITOR_USE_DAEMON")
    install(directory)
    from torch_npu.profiler import _non_intrusive_profile, dynamic_profile
    from torch_npu.profiler._dynamic_profiler import _dynamic_profiler_monitor_shm

    class Now:
        """Replaces ``datetime``, because the profiler names the shared memory after the time."""

        @staticmethod
        def now(**_: Any) -> Any:
            return Now

        @staticmethod
        def astimezone() -> Any:
            return Now

        @staticmethod
        def strftime(_: str) -> str:
            return memory_name

    _dynamic_profiler_monitor_shm.datetime = Now
    dynamic_profile.profile = RecordedProfile
    os.environ["MSMONITOR_USE_DAEMON"] = wanted
    _non_intrusive_profile._NonIntrusiveProfile.init()
    return RecordedProfile


def _package(name: str, path: Path) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = [str(path)]
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module
