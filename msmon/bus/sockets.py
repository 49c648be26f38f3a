"""The two functions that make every socket, and the watch over a connection.

CURVE, limits and time-outs of every socket are set here and nowhere else, so that no socket can
be made without them. They are set before bind or connect, because libzmq ignores most of them
afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from msmon.bus.codec import MAX_PAYLOAD_FRAME_BYTES
from msmon.bus.endpoints import Endpoint
from msmon.bus.headroom import require_headroom
from msmon.bus.keys import KeyPair
from msmon.bus.trust import peer_uid
from msmon.errors import BusError

ZAP_DOMAIN = "msmon"

_SEND_QUEUE_MESSAGES = 1000
_RECEIVE_QUEUE_MESSAGES = 64
"""Per connection, so that one sender can't fill the daemon's memory. The connecting side,
which trusts the daemon, has no limit: libzmq 4.3.5 aborts the process, which may be a
training job, when a ping is due on a broken connection whose receive queue is full."""
_PING_MS = 4_000
_PING_LOST_MS = 10_000
"""Only the connecting side pings. The other side closes the connection when no ping comes."""
_HANDSHAKE_LIMIT_MS = 5_000
_RECONNECT_MS = 100
_RECONNECT_LIMIT_MS = 2_000
_BACKLOG = 1024
_FRAME_ALLOWANCE_BYTES = 64 << 10


def bind(context: zmq.Context[Any], keys: KeyPair | None, urls: Sequence[str]) -> zmq.Socket[Any]:
    """Return a ROUTER bound to all ``urls``; ``keys`` is None where security is off.

    Every connection is put to the authenticator (the ZAP handler); without one, none
    is accepted. Sending to a peer that is gone or full raises instead of waiting.
    Raises BusError naming the address that can't be had.
    """
    router: zmq.Socket[Any] = context.socket(zmq.ROUTER)
    _set_common(router)
    router.setsockopt(zmq.BACKLOG, _BACKLOG)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN.encode())
    router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    if keys is not None:
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        router.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    for url in urls:
        try:
            router.bind(url)
        except zmq.ZMQError as error:
            router.close()
            raise BusError(f"can't listen on {url}: {error.strerror}") from None
    return router


def connect(
    context: zmq.Context[Any], endpoint: Endpoint
) -> tuple[zmq.Socket[Any], HandshakeWatch]:
    """Return a DEALER that is connecting to ``endpoint``, and the watch over it.

    Messages are only queued once the connection is made (IMMEDIATE). Close the watch
    before the socket. Raises BusError where the process has no room for a connection.
    """
    require_headroom()
    dealer: zmq.Socket[Any] = context.socket(zmq.DEALER)
    _set_common(dealer)
    dealer.setsockopt(zmq.RCVHWM, 0)  # see _RECEIVE_QUEUE_MESSAGES
    dealer.setsockopt(zmq.IMMEDIATE, 1)
    dealer.setsockopt(zmq.HEARTBEAT_IVL, _PING_MS)
    dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, _PING_LOST_MS)
    dealer.setsockopt(zmq.HEARTBEAT_TTL, _PING_LOST_MS)
    dealer.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_LIMIT_MS)
    if endpoint.server_public_key is not None and endpoint.client_keys is not None:
        dealer.setsockopt(zmq.CURVE_SERVERKEY, endpoint.server_public_key)
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, endpoint.client_keys.public)
        dealer.setsockopt(zmq.CURVE_SECRETKEY, endpoint.client_keys.secret)
    watch = HandshakeWatch(
        dealer, endpoint.server_public_key is not None, frozenset(endpoint.daemon_uids)
    )
    dealer.connect(endpoint.url)
    return dealer, watch


def _set_common(socket: zmq.Socket[Any]) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.SNDHWM, _SEND_QUEUE_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, _RECEIVE_QUEUE_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_PAYLOAD_FRAME_BYTES + _FRAME_ALLOWANCE_BYTES)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_LIMIT_MS)


@dataclass(frozen=True)
class LinkEvent:
    """Something that happened to a connection.

    ``state``: "connected" (the secured handshake is done), "refused" (it failed;
    ``final`` when libzmq won't try again by itself: make a new socket) or
    "disconnected". ``reason`` and ``next_step`` explain a refusal.
    """

    state: str
    reason: str = ""
    next_step: str = ""
    final: bool = False


WRONG_SERVER_KEY = LinkEvent(
    "refused",
    "the daemon broke the handshake off: the public key that this side has for it is not its key",
    "copy the daemon's public key again",
)


def mechanism_mismatch(secured: bool) -> LinkEvent:
    """Return the refusal where one side is secured and the other isn't."""
    if secured:
        return LinkEvent(
            "refused",
            "the daemon runs with --insecure and this side expects a secured connection",
            "use --insecure here too, or restart the daemon without it",
            final=True,
        )
    return LinkEvent(
        "refused",
        "the daemon only takes secured connections and this side uses --insecure",
        "leave --insecure out",
        final=True,
    )


class HandshakeWatch:
    """The socket monitor of one connecting socket.

    Used on the thread of the watched socket. Register ``socket`` with a poller and call
    :meth:`events` when it is readable. Where
    ``daemon_uids`` says as whom a daemon may run, each connection's other end is asked for its
    user (see :mod:`msmon.bus.trust`), and a stranger is refused before anything is sent.
    """

    _EVENTS = (
        zmq.EVENT_HANDSHAKE_SUCCEEDED
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        | zmq.EVENT_DISCONNECTED
        | zmq.EVENT_CONNECTED
        | zmq.EVENT_CONNECT_RETRIED
    )

    def __init__(
        self, watched: zmq.Socket[Any], secured: bool, daemon_uids: frozenset[int] = frozenset()
    ) -> None:
        self._watched = watched
        self._secured = secured
        self._daemon_uids = daemon_uids
        self._stranger: LinkEvent | None = None
        """The refusal of who is at the other end of the latest connection; None: trusted."""
        self._established = False
        self._broken_off_count = 0
        self.reached = False
        """Whether something accepted the connection, whatever came of it."""
        self.attempts_failed = 0
        """Attempts at which nothing listened."""
        self.socket: zmq.Socket[Any] = watched.get_monitor_socket(self._EVENTS)
        self.socket.setsockopt(zmq.LINGER, 0)

    def events(self) -> list[LinkEvent]:
        """Return what happened since the last call; never waits."""
        found = []
        while self.socket.poll(0):
            message: Any = self.socket.recv_multipart()
            event = parse_monitor_message(message)
            known = self._translate(int(event["event"]), int(event["value"]))
            if known is not None:
                found.append(known)
        return found

    def _translate(self, event: int, value: int) -> LinkEvent | None:
        if event == zmq.EVENT_CONNECTED:
            self.reached = True
            self._stranger = self._refusal_of(peer_uid(value)) if self._daemon_uids else None
            # A connection that is over already can't be asked. The next event tells why it ended.
            return self._stranger if self._stranger and self._stranger.final else None
        if event == zmq.EVENT_CONNECT_RETRIED:
            self.attempts_failed += not self.reached
            return None
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            if self._stranger is not None:
                return self._stranger
            self._established = True
            return LinkEvent("connected")
        if event == zmq.EVENT_DISCONNECTED:
            established, self._established = self._established, False
            return LinkEvent("disconnected") if established else None
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return LinkEvent(
                "refused",
                f"the daemon does not accept this user or key (code {value})",
                "ask its operator to allow this client's public key, or this user",
                final=True,
            )
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            return self._protocol_failure(value)
        return self._broken_off()

    def _refusal_of(self, uid: int | None) -> LinkEvent | None:
        """Refuse who listens there, unless it is a user as which the daemon may run."""
        if uid in self._daemon_uids:
            return None
        who = "somebody who is gone already" if uid is None else f"uid {uid}"
        return LinkEvent(
            "refused",
            f"what listens there belongs to {who}, and the daemon would belong to "
            f"uid {' or '.join(map(str, sorted(self._daemon_uids)))}",
            "see whose socket it is, and remove it",
            final=uid is not None,
        )

    def _broken_off(self) -> LinkEvent | None:
        """A connection that ended during the handshake, without a word.

        The first time this may just as well be a mismatch of mechanisms, which
        libzmq often only names at the next attempt.
        """
        self._broken_off_count += 1
        return WRONG_SERVER_KEY if self._broken_off_count > 1 else None

    def _protocol_failure(self, code: int) -> LinkEvent:
        if code == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return mechanism_mismatch(self._secured)
        return LinkEvent(
            "refused",
            f"what listens there is no msmon daemon (ZMTP error {code:#x})",
            "check host and port",
            final=True,
        )

    def close(self) -> None:
        """End the watch. Call before closing the watched socket."""
        self._watched.disable_monitor()
        self.socket.close()
