"""Drop-in names for users of msMonitor and of the ``mspti`` package.

No other room may depend on this one.
"""
