"""The agent's side of the wire.

The thread that owns the socket, its connection to a daemon, and what is kept until the daemon
has acknowledged it.
"""
