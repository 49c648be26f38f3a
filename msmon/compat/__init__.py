"""Names that other products' users type, in front of msmon's own rooms.

``dyno`` is msMonitor's command line, ``frameworks`` what torch_npu and MindSpore import,
``mspti`` the classes of the ``mspti`` package, ``toplevel`` the packages under the names they
look for. No other room depends on this one, so that it can go when nobody needs it.
"""
