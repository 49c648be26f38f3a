"""Every option of a command and of a trace, described once.

Command line, wire and compat check values by these tables, so an option means the same wherever
it comes in.
"""
