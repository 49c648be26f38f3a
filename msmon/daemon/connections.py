"""The connections of a ROUTER, and hanging up on those that do harm.

libzmq bounds frames and whole messages waiting, not the parts of a message that never
ends, and it can't close one connection. Its monitor names the descriptor of each, which
can be shut down: the peer notices at once, and an honest one connects again and resends.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import zmq
from zmq.utils.monitor import parse_monitor_message

from msmon.bus import messages
from msmon.bus.messages import Message
from msmon.daemon.limited_log import LimitedLog

_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_BROKEN_HANDSHAKES = (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_PEER_CREDENTIALS = struct.Struct("3i")

CREDIT = 1000.0
CREDIT_PER_S = 100.0
"""What a connection may spend, at once and per second."""
PRICES: dict[type[Message], float] = {
    messages.Hello: 5.0,
    messages.Goodbye: 1.0,
    messages.Status: 1.0,
    messages.StatusRequest: 5.0,
    messages.VersionRequest: 1.0,
    messages.MonitorRequest: 5.0,
    messages.TraceRequest: 5.0,
}
"""What is not listed is free: streams are paced by their acknowledgements, and taken in
turn from all connections."""
REFUSED_PRICE = 20.0

GROWTH_LIMIT_BYTES = 256 << 20
"""Growth of the daemon's memory at which those that send and never end are looked for."""
SENDING_S = 0.25
"""Without a whole message, while more bytes wait to be read."""
_CALM_S = 60.0
SILENCE_LIMIT_S = 60.0
"""After so long without a whole message a connection that waits for nothing is closed."""


@dataclass
class Connection:
    """One accepted connection. Times are on the monotonic clock, in seconds."""

    descriptor: int
    origin: object
    """What the kernel says of the other end: address and port, or pid and uid."""
    heard_s: float
    route: bytes = b""
    address: str = ""
    credential: str = ""
    credit: float = CREDIT
    credit_s: float = 0.0
    waiting: int = 0
    """Requests whose answer is still being made."""
    ended: bool = False
    """Hung up on: what of it has arrived already counts no more."""
    logged: bool = False
    """Whether a line about its misdeeds has been written: one is enough."""

    def spend(self, price: float, now_s: float) -> bool:
        """Take ``price`` from the credit, which grows with time; False when it is used up."""
        grown = self.credit + (now_s - self.credit_s) * CREDIT_PER_S
        self.credit, self.credit_s = min(CREDIT, grown) - price, now_s
        return self.credit >= 0


class Connections:
    """All connections of one ROUTER. Lives on the broker's loop; nothing here waits."""

    def __init__(self, router: zmq.Socket[Any], limited: LimitedLog, now_s: float) -> None:
        self._router = router
        self._limited = limited
        self._now_s = now_s
        self._known: dict[int, Connection] = {}
        self._calm_bytes, self._calm_s = resident_bytes(), now_s
        self.socket: zmq.Socket[Any] = router.get_monitor_socket(_EVENTS)
        self.socket.setsockopt(zmq.LINGER, 0)

    def close(self) -> None:
        """End the watch. Call before closing the ROUTER."""
        self._router.disable_monitor()
        self.socket.close()

    def __len__(self) -> int:
        return len(self._known)

    def take_events(self) -> None:
        """Note what was accepted and what has ended; call when ``socket`` may be readable."""
        while self.socket.poll(0):
            message: Any = self.socket.recv_multipart()
            event = parse_monitor_message(message)
            descriptor = int(event["value"])
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._add(descriptor, self._now_s)
            elif event["event"] == zmq.EVENT_DISCONNECTED:
                self._known.pop(descriptor, None)
            elif event["event"] in _BROKEN_HANDSHAKES:
                url = event["endpoint"].decode("utf-8", "replace")
                self._limited.warning("a connection to %s broke off in the handshake", url)

    def _add(self, descriptor: int, now_s: float) -> Connection:
        connection = Connection(descriptor, _origin(descriptor), now_s, credit_s=now_s)
        self._known[descriptor] = connection
        return connection

    def heard(self, route: bytes, frame: zmq.Frame, now_s: float) -> Connection:
        """Return the connection that a whole message has come from."""
        self._now_s = now_s
        descriptor = int(frame.get(zmq.SRCFD))
        connection = self._known.get(descriptor)
        if connection is None or connection.route != route:
            self.take_events()  # the descriptor may be a new connection's by now
            connection = self._known.get(descriptor)
            if connection is None or connection.route not in (b"", route):
                connection = self._add(descriptor, now_s)
            connection.route = route
            connection.address, connection.credential = _vouched(frame)
        connection.heard_s = now_s
        return connection

    def check(self, now_s: float) -> None:
        """Hang up on those that keep silent, sooner while memory grows for no good reason."""
        self._now_s = now_s
        self.take_events()
        grown_bytes = self._growth(now_s)
        for connection in list(self._known.values()):
            silent_s = now_s - connection.heard_s
            if silent_s > SILENCE_LIMIT_S and not connection.waiting:
                self.hang_up(connection, f"no message for {silent_s:.0f} s")
            elif (
                grown_bytes > GROWTH_LIMIT_BYTES
                and silent_s > SENDING_S
                and _bytes_waiting(connection.descriptor)
            ):
                reason = f"no whole message while memory grew by {grown_bytes >> 20} MiB"
                self.hang_up(connection, reason)

    def _growth(self, now_s: float) -> int:
        """Return by how much the daemon's memory has grown since it was last calm."""
        used = resident_bytes()
        if used < self._calm_bytes or now_s - self._calm_s > _CALM_S:
            self._calm_bytes, self._calm_s = used, now_s
        return used - self._calm_bytes

    def hang_up_unless(self, allowed: Callable[[str, str], bool]) -> None:
        """Hang up on all whose address and credential are not ``allowed`` any more."""
        for connection in list(self._known.values()):
            if connection.route and not allowed(connection.address, connection.credential):
                self.hang_up(connection, "its key or user is no longer allowed")

    def hang_up(self, connection: Connection, reason: str) -> None:
        """Close a connection; its descriptor stays libzmq's, which then drops all of it."""
        if connection.ended:
            return
        connection.ended = True
        if not connection.logged:
            self._limited.warning("hung up on %s: %s", connection.origin, reason)
        if connection.origin is None or _origin(connection.descriptor) != connection.origin:
            return  # it has ended by itself, and the number may be another's
        with contextlib.suppress(OSError), _duplicate(connection.descriptor) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)


def resident_bytes() -> int:
    """Return the memory that this process uses."""
    return int(psutil.Process().memory_info().rss)


def _duplicate(descriptor: int) -> socket.socket:
    return socket.socket(fileno=os.dup(descriptor))


def _bytes_waiting(descriptor: int) -> int:
    """Return how many bytes of a connection the kernel holds for us (tcp(7), unix(7))."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return 0
    return count[0]


def _origin(descriptor: int) -> object:
    """Return the other end of a socket; None when it is none or has ended."""
    try:
        with _duplicate(descriptor) as duplicate:
            if duplicate.family != socket.AF_UNIX:
                return duplicate.getpeername()
            size = _PEER_CREDENTIALS.size
            packed = duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            pid, uid, _ = _PEER_CREDENTIALS.unpack(packed)
            return f"uid {uid}, pid {pid}"
    except OSError:
        return None


def _vouched(frame: zmq.Frame) -> tuple[str, str]:
    """Return address and user id as the authenticator knows them; empty without one."""
    try:
        return str(frame.get("Peer-Address")), str(frame.get("User-Id"))
    except (zmq.ZMQError, KeyError):
        return "", ""
