"""The command line: one module or folder per command.

A command is thin: it reads options, asks, and shows the answer. The work is done elsewhere.
"""
