"""The command line: one module per command, a folder where a command has several modules.

``main`` names them all. A command reads its options, asks the daemon or another room, and shows the
answer; it decides nothing. What several commands need lies in ``asking``.
"""
