"""What the daemon does when an agent speaks: hello, heartbeat, stream, answer, goodbye."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msmon.bus import messages
from msmon.bus.codec import Envelope
from msmon.bus.messages import Message, Welcome
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.identity import confirmed
from msmon.daemon.access.roles import REGISTERS
from msmon.daemon.commands.commander import Commander
from msmon.daemon.process import Life, Process
from msmon.daemon.registry import Registry
from msmon.daemon.streams.losses import STREAM_TYPES, unreadable
from msmon.daemon.streams.streams import Streams
from msmon.errors import CommandRefused
from msmon.sessions import ProcessInfo

_log = logging.getLogger(__name__)

FROM_AGENTS = (
    *STREAM_TYPES,
    messages.WindowSoFar,
    messages.Status,
    messages.Answer,
    messages.Goodbye,
)
"""Messages that only a registered process may send."""
Send = Callable[[bytes, Message, str], bool]
"""Sends a message with an id over a connection; see ``Transport.send``."""


class Agents:
    """Acts on what agents send. It keeps nothing itself.

    Every method runs on the broker's loop, because registry, streams and commander are
    written there only.
    """

    def __init__(
        self,
        registry: Registry,
        streams: Streams,
        commander: Commander,
        welcome: Welcome,
        send: Send,
    ) -> None:
        self._registry = registry
        self._streams = streams
        self._commander = commander
        self._welcome = welcome
        self._send = send

    def greet(
        self, route: bytes, peer: Peer, hello: messages.Hello, message_id: str, minor: int
    ) -> None:
        """Answer a hello, and register the process that it names. ``minor``: its protocol's.

        Raises CommandRefused if the peer may not register processes, or is not that process.
        """
        if hello.process is not None:
            if peer.role not in REGISTERS:
                raise CommandRefused(f"{peer.name} may not register processes")
            process = self._register(route, peer, hello, hello.process, message_id)
            process.names_orders = minor >= messages.ORDERS_MINOR
        self._send(route, self._welcome, message_id)

    def _register(
        self,
        route: bytes,
        peer: Peer,
        hello: messages.Hello,
        claim: ProcessInfo,
        agent_id: str,
    ) -> Process:
        former = self._registry.of_route(route)
        carrier = hello.role == "carrier"
        info = confirmed(claim, peer, carrier, self._welcome.host)
        now_s = time.monotonic()
        process = self._registry.register(info, peer, route, hello.version, now_s, carrier)
        if agent_id and process.agent_id not in ("", agent_id):
            self._streams.end_replaced(process)
        process.agent_id = agent_id
        if process is not former:
            _log.info(
                "%s registered, %s, msmon %s",
                *(process.label, peer.name, hello.version),
                extra={"owner": peer.owner},
            )
        return process

    def act(self, route: bytes, envelope: Envelope, header_bytes: int) -> None:
        """Act on one of :data:`FROM_AGENTS`.

        Raises CommandRefused if no process is registered on the connection, and what the
        streams and the registry refuse.
        """
        message = envelope.message
        process = self._registry.of_route(route)
        if process is None:
            raise CommandRefused("no process is registered on this connection", "say hello first")
        self._registry.heard(process, time.monotonic())
        if isinstance(message, STREAM_TYPES):
            self._streams.take(process, message, envelope.payload)
        elif isinstance(message, messages.WindowSoFar):
            self._streams.keep_so_far(process, message, envelope.payload)
        elif isinstance(message, messages.Status):
            self._registry.keep_status(process, message, header_bytes)
        elif isinstance(message, messages.Answer):
            self._commander.answered(process, envelope.message_id, message)
        elif isinstance(message, messages.Goodbye):
            self._bid_farewell(process, message.reason)

    def pass_over(
        self, route: bytes, header: Mapping[str, Any], payload: Sequence[bytes], reason: str
    ) -> bool:
        """Take an invalid message of a stream as a loss; False where it is none of a process here.

        ``header`` is the plain map of its first frame. Raises what the streams refuse.
        """
        process = self._registry.of_route(route)
        message = unreadable(header, payload, reason)
        if process is None or message is None:
            return False
        self._registry.heard(process, time.monotonic())
        self._streams.pass_over(process, message)
        return True

    def _bid_farewell(self, process: Process, reason: str) -> None:
        owner = {"owner": process.peer.owner}
        _log.info("%s ended: %s", process.label, reason, extra=owner)
        self._registry.goodbye(process, time.monotonic())
        self._commander.gone(process)

    def expire(self, now_s: float) -> None:
        """Notice the processes that have said nothing for too long."""
        for process in self._registry.expire(now_s):
            owner = {"owner": process.peer.owner}
            silent_s = now_s - process.last_seen_s
            if process.life is Life.SILENT:
                text = "%s runs and has said nothing for %.0f s"
                _log.warning(text, process.label, silent_s, extra=owner)
                continue
            _log.warning("%s is lost: silent for %.0f s", process.label, silent_s, extra=owner)
            self._commander.gone(process)
        self._streams.expire(now_s)
