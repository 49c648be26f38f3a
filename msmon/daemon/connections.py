"""The connections of a ROUTER, and hanging up on those that do harm.

libzmq bounds frames and whole messages waiting. It bounds neither the parts of a message that
never ends nor the number of connections, and it can't close a single one. Its monitor names
the descriptor of each, and a descriptor can be shut down: the peer notices at once, and an
honest one connects again and resends.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import socket
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import zmq
from zmq.utils.monitor import parse_monitor_message

from msmon.bus import messages
from msmon.bus.messages import Message
from msmon.daemon.access.descriptors import UNSEEN, Origin, duplicate, origin_of
from msmon.daemon.access.shares import Resource, Shares
from msmon.daemon.limited_log import LimitedLog

_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_BROKEN_HANDSHAKES = (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_MONITOR = "inproc://msmon-daemon-connections"

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
"""What is not listed is free: streams are paced by their acknowledgements. What they cost is
charged to their owner's share of the loop's time (``Resource.LOOP_S``)."""
REFUSED_PRICE = 20.0

GROWTH_LIMIT_BYTES = 256 << 20
"""Growth of the daemon's memory at which those that send and never end are looked for."""
SENDING_S = 0.25
"""Without a whole message, while more bytes wait to be read."""
_CALM_S = 60.0
SILENCE_LIMIT_S = 60.0
"""After so long without a whole message a connection that waits for nothing is closed."""
FIRST_WORD_LIMIT_S = 20.0
"""The same for one that has never said anything. The handshake itself has 5 s (bus.sockets)."""
CHARGE_FROM_S = 0.005
"""Loop time of a connection is charged in parts of this size: charging costs time too."""
BARRED_S = 2.0
"""So long an owner is not heard that has used up its share of the loop's time. An agent keeps
what it has, connects again after that and resends."""


@dataclass
class Connection:
    """One accepted connection. Times are on the monotonic clock, in seconds."""

    descriptor: int
    origin: Origin | None
    """The other end; None when it had gone before anybody looked."""
    heard_s: float
    owner: str = ""
    """Who pays for it: the owner of its origin, later that of its key. Empty: nobody yet."""
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
    used_s: float = 0.0
    """Loop time that it has used and that is not charged to its owner yet."""

    def spend(self, price: float, now_s: float) -> bool:
        """Take ``price`` from the credit, which grows with time; False when it is used up."""
        grown = self.credit + (now_s - self.credit_s) * CREDIT_PER_S
        self.credit, self.credit_s = min(CREDIT, grown) - price, now_s
        return self.credit >= 0


class Connections:
    """All connections of one ROUTER. Lives on the broker's loop; nothing here waits.

    ``budget`` bounds all of them together, ``shares`` those of each owner. What is over is hung
    up on before it has said a word.
    """

    def __init__(
        self,
        router: zmq.Socket[Any],
        limited: LimitedLog,
        now_s: float,
        shares: Shares,
        budget: int,
    ) -> None:
        self._router = router
        self._limited = limited
        self._now_s = now_s
        self._shares = shares
        self._budget = budget
        self._known: dict[int, Connection] = {}
        self._barred_until_s: dict[str, float] = {}
        """Owner that used up its share of the loop's time → when it is heard again."""
        self._calm_bytes, self._calm_s = resident_bytes(), now_s
        self.socket = _monitor_of(router)

    def close(self) -> None:
        """End the watch. Call before closing the ROUTER."""
        self._router.disable_monitor()
        self.socket.close()

    def __len__(self) -> int:
        return len(self._known)

    def take_events(self, most: int = UNSEEN) -> bool:
        """Note what was accepted and what has ended; call when ``socket`` may be readable.

        Returns whether ``most`` notices were taken and there may be more.
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
            elif event["event"] in _BROKEN_HANDSHAKES:
                url = event["endpoint"].decode("utf-8", "replace")
                self._limited.warning("a connection to %s broke off in the handshake", url)
        return True

    def _add(self, descriptor: int, now_s: float) -> Connection:
        """Take note of a new connection; hang up when its owner or all have too many."""
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

    def _count_for(self, connection: Connection, owner: str) -> None:
        """Have ``owner`` pay for a connection from now on; hang up when it can't."""
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
        """Return the connection that a whole message has come from.

        A peer that gave itself a routing id, which no client of ours does, is hung up on:
        libzmq 4.3.5 aborts when the ROUTER is about to give the same id to another.
        """
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
            if not _given_by_router(route):
                self.hang_up(connection, "it claims a routing id")
        connection.heard_s = now_s
        return connection

    def belongs_to(self, connection: Connection, owner: str) -> None:
        """Note whose connection it is, now that its key is known.

        Hangs up on an owner that has used up its time: who connects again at once would have
        another message carried out each time.
        """
        if connection.owner != owner and not connection.ended:
            self._count_for(connection, owner)
        if owner in self._barred_until_s and not connection.ended:
            if self._now_s < self._barred_until_s[owner]:
                self.hang_up(connection, "its owner has used up the share of the loop's time")
            else:
                del self._barred_until_s[owner]

    def charge_time(self, connection: Connection, owner: str, used_s: float) -> None:
        """Charge what a message took of the loop's time; hang up when that was too much."""
        connection.used_s += used_s
        if connection.used_s < CHARGE_FROM_S:
            return
        used_s, connection.used_s = connection.used_s, 0.0
        if not self._shares.charge(owner, Resource.LOOP_S, used_s):
            self._barred_until_s[owner] = self._now_s + BARRED_S
            self.hang_up(connection, "its owner has used up the share of the loop's time", owner)

    def check(self, now_s: float) -> None:
        """Hang up on those that keep silent, sooner while memory grows for no good reason."""
        self._now_s = now_s
        self.take_events()
        grown_bytes = self._growth(now_s)
        for connection in list(self._known.values()):
            silent_s = now_s - connection.heard_s
            limit_s = SILENCE_LIMIT_S if connection.route else FIRST_WORD_LIMIT_S
            if silent_s > limit_s and not connection.waiting:
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

    def hang_up(self, connection: Connection, reason: str, owner: str = "") -> None:
        """Close a connection; its descriptor stays libzmq's, which then drops all of it."""
        if connection.ended:
            return
        connection.ended = True
        origin = connection.origin
        if not connection.logged:
            owner = owner or connection.owner or (origin.owner if origin is not None else "?")
            self._limited.warning("hung up on %s: %s", origin, reason, owner=owner)
        if origin is None or origin_of(connection.descriptor) != origin:
            return  # it has ended by itself, and the number may be another's
        with contextlib.suppress(OSError), duplicate(connection.descriptor) as one:
            one.shutdown(socket.SHUT_RDWR)


def _monitor_of(router: zmq.Socket[Any]) -> zmq.Socket[Any]:
    """Return the reading end of the ROUTER's monitor.

    Its own queue is as short as can be: what libzmq accepts before anybody looks is bounded by
    both queues together (``descriptors.UNSEEN``).
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
    """Return how many bytes of a connection the kernel holds for us (tcp(7), unix(7))."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return 0
    return count[0]


def _vouched(frame: zmq.Frame) -> tuple[str, str]:
    """Return address and user id as the authenticator knows them; empty without one."""
    try:
        return str(frame.get("Peer-Address")), str(frame.get("User-Id"))
    except (zmq.ZMQError, KeyError):
        return "", ""
