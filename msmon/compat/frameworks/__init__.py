"""What torch_npu and MindSpore call.

``PyDynamicMonitorProxy`` and ``Monitor`` of the packages ``IPCMonitor`` and ``msmonitor``.
"""
