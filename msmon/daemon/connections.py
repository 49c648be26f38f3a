"""All connections of the ROUTER, and hanging up on those that do harm.

libzmq bounds the size of a frame and the number of whole messages that wait. It doesn't bound
the parts of a message that never ends, nor the number of connections, and it offers no call to
close one of them. But its monitor tells the descriptor of each connection, and a descriptor can
be shut down. The peer notices that at once. An honest one connects again and sends again.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import logging
import socket
import termios
from collections.abc import Callable
from typing import Any

import psutil
import zmq
from zmq.utils.monitor import parse_monitor_message

from msmon.daemon.access.descriptors import UNSEEN, duplicate, origin_of
from msmon.daemon.access.shares import Resource, Shares
from msmon.daemon.connection import Connection
from msmon.errors import CommandRefused

_log = logging.getLogger(__name__)

_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_MONITOR = "inproc://msmon-daemon-connections"

GROWTH_LIMIT_BYTES = 256 << 20
"""When the daemon's memory has grown by this, it looks for messages that never end."""
SENDING_S = 0.25
"""A connection sends such a message if it completes none for this time while bytes wait."""
_CALM_S = 60.0
"""Memory that grows more slowly than the limit in this time is taken as normal."""
SILENCE_LIMIT_S = 60.0
"""A connection is closed after this time without a whole message, unless it waits for an answer."""
FIRST_WORD_LIMIT_S = 20.0
"""The same for one that has never said anything. The handshake itself has 5 s (bus.sockets)."""
CHARGE_FROM_S = 0.005
"""Loop time of a connection is charged in parts of this size, because charging costs time too."""
BARRED_S = 2.0
"""An owner that has used up its share of the loop's time isn't heard for this long. Agents keep
what they have, connect again after that and send again."""


class Connections:
    """All connections of one ROUTER. The broker's loop writes all of its state; nothing waits.

    ``budget`` bounds the number of all connections, ``shares`` that of each owner. A connection
    that is too many is closed before it has said a word.
    """

    def __init__(self, router: zmq.Socket[Any], now_s: float, shares: Shares, budget: int) -> None:
        self._router = router
        self._now_s = now_s
        self._shares = shares
        self._budget = budget
        self._known: dict[int, Connection] = {}
        self.cut_off = 0
        """Connections that were hung up on, or broke off in the handshake."""
        self._barred_until_s: dict[str, float] = {}
        """Owner that used up its share of the loop's time → when it is heard again."""
        self._calm_bytes, self._calm_s = resident_bytes(), now_s
        self.socket = _monitor_of(router)

    def close(self) -> None:
        """Stop watching. Call before closing the ROUTER."""
        self._router.disable_monitor()
        self.socket.close()

    def __len__(self) -> int:
        return len(self._known)

    def take_events(self, most: int = UNSEEN) -> bool:
        """Note which connections are new and which have ended. Call when ``socket`` is readable.

        Takes ``most`` notices at most. Returns True if there may be more.
        """
        for _ in range(most):
            if not self.socket.poll(0):
                return False
            message: Any = self.socket.recv_multipart()
            event = parse_monitor_message(message)
            descriptor = int(event["value"])
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._add(descriptor, self._now_s)
            elif event["event"] == zmq.EVENT_DISCONNECTED:
                self._forget(descriptor)
            else:
                self._note_broken_handshake(event["event"], event["endpoint"])
        return True

    def _note_broken_handshake(self, event: int, endpoint: bytes) -> None:
        """Count a connection that ended in the handshake; warn where the peer did something wrong.

        One that only leaves is no reason to worry. Examples: ``msmon doctor`` asks who listens, a
        balancer looks whether the port is open.
        """
        self.cut_off += 1
        url = endpoint.decode("utf-8", "replace")
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            _log.warning("a connection to %s broke the rules of the handshake", url)
        else:
            _log.debug("a connection to %s ended before its handshake", url)

    def _add(self, descriptor: int, now_s: float) -> Connection:
        """Note a new connection. Hang up if its owner has too many, or all together are."""
        self._forget(descriptor)
        origin = origin_of(descriptor)
        connection = Connection(descriptor, origin, now_s, credit_s=now_s)
        self._known[descriptor] = connection
        if origin is not None:
            self._count_for(connection, origin.owner)
        if len(self._known) > self._budget:
            self.hang_up(connection, f"{self._budget} connections are open already")
        return connection

    def _forget(self, descriptor: int) -> None:
        connection = self._known.pop(descriptor, None)
        if connection is not None and connection.owner:
            self._shares.give_back(connection.owner, Resource.CONNECTIONS)
            self._shares.give_back(connection.owner, Resource.UNREAD_BYTES, connection.unread_bytes)

    def _count_for(self, connection: Connection, owner: str) -> None:
        """Let ``owner`` pay for a connection from now on. Hang up if its share is used up."""
        if connection.owner == owner:
            return
        if connection.owner:
            self._shares.give_back(connection.owner, Resource.CONNECTIONS)
        connection.owner = ""
        if self._shares.try_take(owner, Resource.CONNECTIONS):
            connection.owner = owner
        else:
            self.hang_up(connection, "its owner has used up the share of connections", owner)

    def heard(self, route: bytes, frame: zmq.Frame, now_s: float) -> Connection:
        """Return the connection from which a whole message has come.

        Hangs up on a peer that gave itself a routing id. No client of msmon does that, and
        libzmq 4.3.5 aborts when the ROUTER is about to give the same id to another peer.
        """
        self._now_s = now_s
        descriptor = int(frame.get(zmq.SRCFD))
        connection = self._known.get(descriptor)
        if connection is None or connection.route != route:
            self.take_events()  # By now the descriptor may be that of a new connection.
            connection = self._known.get(descriptor)
            if connection is None or connection.route not in (b"", route):
                connection = self._add(descriptor, now_s)
            connection.route = route
            connection.address, connection.credential = _vouched(frame)
            if not _given_by_router(route):
                self.hang_up(connection, "it claims a routing id")
        connection.heard_s = now_s
        return connection

    def belongs_to(self, connection: Connection, owner: str) -> None:
        """Note whose connection it is, now that its key is known.

        Hangs up while the owner is barred. Otherwise an owner without time left could connect
        again and again, and have one message carried out each time.
        """
        if connection.owner != owner and not connection.ended:
            self._count_for(connection, owner)
        if owner in self._barred_until_s and not connection.ended:
            if self._now_s < self._barred_until_s[owner]:
                self.hang_up(connection, "its owner has used up the share of the loop's time")
            else:
                del self._barred_until_s[owner]

    def charge_time(self, connection: Connection, owner: str, used_s: float) -> None:
        """Charge loop time to an owner (see ``charged_s``). Hang up if its share is used up."""
        connection.used_s += used_s
        if connection.used_s < CHARGE_FROM_S:
            return
        used_s, connection.used_s = connection.used_s, 0.0
        if not self._shares.charge(owner, Resource.LOOP_S, used_s):
            self._barred_until_s[owner] = self._now_s + BARRED_S
            self.hang_up(connection, "its owner has used up the share of the loop's time", owner)

    def require_read(self, connection: Connection, receipt: str) -> None:
        """Note that the last long answer on a connection was read, which its receipt proves.

        Who asks and never reads would fill the daemon's memory. Raises CommandRefused for another
        receipt.
        """
        if not connection.unread_bytes:
            return
        if receipt != connection.receipt:
            raise CommandRefused(
                "the last answer on this connection has not been read",
                "quote its receipt, or connect again",
            )
        self._shares.give_back(connection.owner, Resource.UNREAD_BYTES, connection.unread_bytes)
        connection.unread_bytes = 0

    def await_receipt(self, connection: Connection, receipt: str, size_bytes: int) -> None:
        """Count a long answer that is about to be sent. Raises ShareUsedUp."""
        self._shares.take(connection.owner, Resource.UNREAD_BYTES, size_bytes)
        connection.receipt, connection.unread_bytes = receipt, size_bytes

    def is_open(self, route: bytes) -> bool:
        """Whether a connection with this routing id is there, and nobody hung up on it."""
        return any(item.route == route and not item.ended for item in self._known.values())

    def check(self, now_s: float, stays: Callable[[Connection], bool] = lambda _: False) -> None:
        """Hang up on connections that are silent for too long, unless ``stays`` holds for it.

        While memory grows, also on those that send a message that never ends.
        """
        self._now_s = now_s
        self.take_events()
        grown_bytes = self._growth(now_s)
        for connection in list(self._known.values()):
            silent_s = now_s - connection.heard_s
            limit_s = SILENCE_LIMIT_S if connection.route else FIRST_WORD_LIMIT_S
            if silent_s > limit_s and not connection.waiting and not stays(connection):
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
        """Hang up on each connection whose address and credential are no longer ``allowed``."""
        for connection in list(self._known.values()):
            if connection.route and not allowed(connection.address, connection.credential):
                self.hang_up(connection, "its key or user is no longer allowed")

    def hang_up(self, connection: Connection, reason: str, owner: str = "") -> None:
        """Shut a connection down. Its descriptor stays with libzmq, which notices and frees it."""
        if connection.ended:
            return
        connection.ended = True
        self.cut_off += 1
        origin = connection.origin
        if not connection.logged:
            owner = owner or connection.owner or (origin.owner if origin is not None else "?")
            _log.warning("hung up on %s: %s", origin, reason, extra={"owner": owner})
        if origin is None or origin_of(connection.descriptor) != origin:
            return  # It has ended by itself, and the descriptor may be another's by now.
        with contextlib.suppress(OSError), duplicate(connection.descriptor) as one:
            one.shutdown(socket.SHUT_RDWR)


def _monitor_of(router: zmq.Socket[Any]) -> zmq.Socket[Any]:
    """Return the reading end of the ROUTER's monitor.

    Its own queue holds one notice only. libzmq accepts connections until both queues are full,
    so they decide how many descriptors must be kept free (``descriptors.UNSEEN``).
    """
    router.monitor(_MONITOR, _EVENTS)
    reader: zmq.Socket[Any] = router.context.socket(zmq.PAIR)
    reader.setsockopt(zmq.RCVHWM, 1)
    reader.setsockopt(zmq.LINGER, 0)
    reader.connect(_MONITOR)
    return reader


def _given_by_router(route: bytes) -> bool:
    """Whether a routing id looks like those that libzmq makes: a zero byte and a counter."""
    return len(route) == 5 and route[0] == 0


def resident_bytes() -> int:
    """Return the memory that this process uses."""
    return int(psutil.Process().memory_info().rss)


def _bytes_waiting(descriptor: int) -> int:
    """Return how many received bytes of a connection nobody has read yet (tcp(7), unix(7))."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return 0
    return count[0]


def _vouched(frame: zmq.Frame) -> tuple[str, str]:
    """Return address and user id as the authenticator gave them; empty if there was none."""
    try:
        return str(frame.get("Peer-Address")), str(frame.get("User-Id"))
    except (zmq.ZMQError, KeyError):
        return "", ""
