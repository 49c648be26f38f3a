"""msmon: online performance monitoring for training and inference on Ascend NPUs.

The public names below are imported at their first use, so that ``import msmon`` is fast and
has no side effects.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "ActivityKind": "msmon.records.kinds",
    "Monitor": "msmon.monitor_api.monitor",
    "init": "msmon.agent",
    "mindspore_callback": "msmon.agent.steps.mindspore",
    "set_step": "msmon.agent",
    "shutdown": "msmon.agent",
    "step": "msmon.agent",
}

__all__ = [*sorted(_EXPORTS), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
