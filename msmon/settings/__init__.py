"""Every option of a command and of a trace, defined once.

Command line, wire and compat derive from it.
"""
