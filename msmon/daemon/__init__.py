"""The process that serves one node.

The broker's loop, the registry of processes, the commands, and the service around them.
"""
