"""The top-level package ``IPCMonitor``: msMonitor's names, implemented by msmon."""

from msmon.compat.frameworks.monitor import shared as Monitor
from msmon.compat.frameworks.proxy import shared as PyDynamicMonitorProxy
from msmon.records.kinds import ActivityKind

__all__ = ["ActivityKind", "Monitor", "PyDynamicMonitorProxy"]
