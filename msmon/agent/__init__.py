"""What lives inside the training process."""

from __future__ import annotations

from msmon.agent.lifecycle import init, shutdown, step

__all__ = ["init", "shutdown", "step"]
