"""The top-level package ``IPCMonitor``: msMonitor's names, implemented by msmon."""

from msmon.compat.monitor import shared as Monitor
from msmon.kinds import ActivityKind

__all__ = ["ActivityKind", "Monitor"]
