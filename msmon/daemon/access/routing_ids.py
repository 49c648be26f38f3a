"""Routing ids that nobody can guess.

A ROUTER gives each connection an id of a zero byte and a 32-bit counter. A peer may choose its
own id instead, also one of this form. When the counter reaches that number, libzmq 4.3.5 finds
the id taken and aborts the process (socket_base.cpp, ``Assertion failed: ok``). libzmq offers
nothing against that. A ROUTER can't refuse ids that peers choose, and with ZMQ_ROUTER_HANDOVER a
peer could take another's place.

So the start of the counter must be secret. libzmq takes it from the C library's ``rand``, which
it seeds with the time, so few guesses would find it. This module seeds it from the system's
randomness, and the start is one of 2^32. No id is ever sent to a peer, and an owner holds 256
connections at most. So a hit takes days of connecting without a pause. If it happens, the service
manager starts the daemon again (Restart=always in the unit). Agents connect again and send again
what was not acknowledged, so nothing is lost.
"""

from __future__ import annotations

import ctypes
import secrets


def make_routing_ids_unpredictable() -> None:
    """Seed the C library's ``rand``. Call right before the ROUTER is made."""
    ctypes.CDLL(None).srand(ctypes.c_uint(secrets.randbits(32)))
