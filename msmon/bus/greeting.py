"""Asks a listening socket how it is secured, without a key.

libzmq closes the connection of a peer with another mechanism or a wrong key, and whether its
monitor tells which of the two it was depends on timing. The greeting of ZMTP 3.x (RFC 23)
always names the mechanism. A server sends it whole once it has the first half of ours.
"""

from __future__ import annotations

import socket

_SIGNATURE_AND_MAJOR = b"\xff" + bytes(8) + b"\x7f\x03"
_GREETING_BYTES = 64
_MECHANISM = slice(12, 32)


def offered_mechanism(url: str, timeout_s: float = 1.0) -> str:
    """Return "CURVE" or "NULL" as offered at an ipc or tcp URL; empty if it isn't ZMTP 3."""
    try:
        with _connected(url, timeout_s) as connection:
            connection.sendall(_SIGNATURE_AND_MAJOR)
            greeting = b""
            while len(greeting) < _GREETING_BYTES:
                received = connection.recv(_GREETING_BYTES - len(greeting))
                if not received:
                    return ""
                greeting += received
    except OSError:
        return ""
    if greeting[0] != 0xFF or greeting[9] != 0x7F:
        return ""
    return greeting[_MECHANISM].rstrip(b"\0").decode("ascii", "replace")


def _connected(url: str, timeout_s: float) -> socket.socket:
    transport, _, address = url.partition("://")
    if transport == "ipc":
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_s)
        try:
            connection.connect(address)
        except OSError:
            connection.close()
            raise
        return connection
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout_s)
