"""How many connections the daemon can hold, and what the kernel says of each.

libzmq accepts every connection that the kernel offers. If the process has no descriptor left at
that moment, libzmq 4.3.5 aborts it (ipc_listener.cpp does not expect EMFILE). So connections are
counted, and the number stays well below the limit:

* :func:`raise_limit` raises the limit of open files as far as it goes.
* :func:`connection_budget` keeps a part of it free. libzmq may accept :data:`UNSEEN` connections
  before this process has looked at the first. It reports each on the ROUTER's monitor, and waits
  when that many reports are unread. The rest is for files, outputs and libraries.
"""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
import struct
from dataclasses import dataclass

UNSEEN = 1100
"""The most connections that libzmq accepts while nobody reads the monitor. The monitor's queue
holds 1,000 reports, and each round of libzmq's loop adds a few."""
OWN = 400
"""Descriptors that are kept for everything but connections."""
_PEER_CREDENTIALS = struct.Struct("3i")
_IPV6_NETWORK_BITS = 64
"""A host can use every address of its /64 network, so these addresses count as one owner."""


@dataclass(frozen=True)
class Origin:
    """The other end of a connection, as the kernel knows it."""

    owner: str
    """Who pays for it: "uid 1000", or "address 10.0.0.7" as long as its key is not known."""
    end: str
    """Tells connections of one owner apart: pid, or address and port."""

    def __str__(self) -> str:
        return f"{self.owner}, {self.end}"


def raise_limit() -> int:
    """Raise the limit of open files as far as it goes, and return it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def connection_budget(limit: int) -> int:
    """Return how many connections may be open at once under a limit of open files.

    Below :data:`UNSEEN` + :data:`OWN` there is no safe number. Half of the limit is right for
    honest peers then; the caller warns.
    """
    return max(limit - UNSEEN - OWN, limit // 2)


def is_safe(limit: int) -> bool:
    """Whether connections can't use up this limit of open files, however fast they come."""
    return limit - UNSEEN - OWN >= limit // 2


def origin_of(descriptor: int) -> Origin | None:
    """Return the other end of a socket; None if the descriptor is no socket or has ended."""
    try:
        with duplicate(descriptor) as one:
            if one.family != socket.AF_UNIX:
                return _remote_origin(one.getpeername())
            size = _PEER_CREDENTIALS.size
            packed = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            pid, uid, _ = _PEER_CREDENTIALS.unpack(packed)
            return Origin(f"uid {uid}", f"pid {pid}")
    except OSError:
        return None


def duplicate(descriptor: int) -> socket.socket:
    """Return a socket for a copy of libzmq's descriptor, to be closed by itself. Raises OSError."""
    return socket.socket(fileno=os.dup(descriptor))


def _remote_origin(name: tuple[object, ...]) -> Origin:
    host, port = str(name[0]).partition("%")[0], name[1]
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        network = ipaddress.ip_network((address, _IPV6_NETWORK_BITS), strict=False)
        counted = str(mapped) if mapped is not None else str(network)
    else:
        counted = host
    return Origin(f"address {counted}", f"{host} port {port}")
