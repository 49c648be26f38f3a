"""What lives inside the training process.

Begin with ``lifecycle``: it starts the agent of this process and takes it down. ``agent`` puts
its parts together. It has two threads: the *collector* makes every MSPTI call and decodes, the
*link* owns the socket. Nothing here raises into the job, prints, or waits for the daemon.

The names are imported on first use: a process that turns out to be no rank loads only the
modules that decide it.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["init", "set_step", "shutdown", "step"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("msmon.agent.lifecycle"), name)
