"""TCP ports for daemons that tests start."""

from __future__ import annotations

import random
import socket

BELOW_EPHEMERAL = range(10_000, 30_000)
"""The kernel gives none of these to a socket that asks for any port (ip(7))."""


def free_port() -> int:
    """Return a port that nobody listens on, and that no other test is likely to get.

    A port that the kernel chose for a probe could be given to the next socket that asks for
    any port, before the daemon listens on it.
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
