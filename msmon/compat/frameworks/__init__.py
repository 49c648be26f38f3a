"""The objects that torch_npu, MindSpore and users import from ``IPCMonitor`` and ``msmonitor``.

The frameworks call ``PyDynamicMonitorProxy``, users call ``Monitor``.
"""
