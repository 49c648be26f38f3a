"""The agent's side of the wire.

``thread`` owns the socket and keeps coming back to a daemon that went away. ``uplink`` numbers
what the collector hands over and keeps it until the daemon has acknowledged it.
"""
