"""Interfaces of other products, implemented by msmon, so that their users need no changes.

``dyno`` is msMonitor's command line, ``frameworks`` is what torch_npu and MindSpore import,
``mspti`` has the classes of the ``mspti`` package, and ``toplevel`` has the packages whose names
the frameworks look for. No other room imports this one, so it can be removed.
"""
