"""TCP ports for daemons that tests start."""

from __future__ import annotations

import random
import socket

BELOW_EPHEMERAL = range(10_000, 30_000)
"""The kernel gives none of these to a socket that asks for any free port (ip(7))."""


def free_port() -> int:
    """Return a port that nobody listens on, and that other tests probably don't get.

    A port that the kernel chooses is no good: the kernel could give it to another socket
    before the daemon listens on it.
    """
    chosen = random.SystemRandom()
    while True:
        port = chosen.choice(BELOW_EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
