"""The blocking connection that a command has to a daemon.

Each way in which it can fail raises an error with its own text and next step, within the
time-out. Leaving the context never waits.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import zmq

from msmon import __version__
from msmon.bus import sockets
from msmon.bus.codec import Envelope, decode, encode
from msmon.bus.endpoints import Endpoint
from msmon.bus.greeting import offered_mechanism
from msmon.bus.messages import Hello, Message, Refused, Reply, Welcome
from msmon.bus.sockets import LinkEvent, mechanism_mismatch
from msmon.errors import (
    BusError,
    CommandRefused,
    DaemonUnreachable,
    HandshakeRefused,
    ProtocolMismatch,
)

_REFUSED_ATTEMPTS = 4
"""Attempts at an address where nothing listens; a daemon that restarts needs a moment."""
_SUSPICIOUS_AFTER_S = 2.0
"""After this time without a handshake the socket is asked for its greeting: a program that is no
ZeroMQ server sends none, and waiting for the whole time-out would be of no use."""


class Client:
    """A connection to the daemon at ``endpoint``; use it as a context manager, on one thread.

    Entering raises DaemonUnreachable, HandshakeRefused or ProtocolMismatch.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float = 10.0) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._ids = itertools.count(1)
        self.daemon: Welcome | None = None
        """What the daemon said of itself, once connected."""

    def __enter__(self) -> Client:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket, self._watch = sockets.connect(self._context, self._endpoint)
        try:
            deadline_s = time.monotonic() + self._timeout_s
            self._await_connection(deadline_s)
            answer = self._exchange(Hello(__version__, "client"), deadline_s).message
            if not isinstance(answer, Welcome):
                raise ProtocolMismatch(f"the daemon answered a hello with {answer.TYPE!r}")
            self.daemon = answer
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection."""
        self._watch.close()
        self._socket.close()
        self._context.destroy(linger=0)

    def request(self, message: Message, timeout_s: float | None = None) -> Reply:
        """Send a request and return the daemon's reply.

        Raises CommandRefused when the daemon says no, DaemonUnreachable when it goes
        away or does not answer in time.
        """
        answer = self.exchange(message, timeout_s).message
        if not isinstance(answer, Reply):
            raise BusError(f"the daemon answered with {answer.TYPE!r} instead of a reply")
        return answer

    def exchange(self, message: Message, timeout_s: float | None = None) -> Envelope:
        """Send a question and return the answer with its payload. Raises as :meth:`request`."""
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        return self._exchange(message, time.monotonic() + wait_s)

    def _await_connection(self, deadline_s: float) -> None:
        suspicious_s = min(deadline_s, time.monotonic() + _SUSPICIOUS_AFTER_S)
        while True:
            remaining_ms = max(0, int((suspicious_s - time.monotonic()) * 1000))
            waited = self._watch.socket.poll(remaining_ms)
            for event in self._watch.events():
                if event.state == "connected":
                    return
                if event.state == "refused":
                    raise self._refusal(event)
            if self._watch.attempts_failed >= _REFUSED_ATTEMPTS:
                raise DaemonUnreachable(
                    f"no daemon listens at {self._at}", "start msmon-daemon there"
                )
            if waited:
                continue
            if suspicious_s >= deadline_s or (self._watch.reached and self._is_mute()):
                raise self._silence()
            suspicious_s = deadline_s

    def _is_mute(self) -> bool:
        """Whether what accepts connections there does not greet as ZeroMQ does at once."""
        return not offered_mechanism(self._at)

    def _refusal(self, event: LinkEvent) -> HandshakeRefused:
        """Tell a wrong key from a side that is not secured, which may look the same."""
        secured = self._endpoint.server_public_key is not None
        if not event.final:
            offered = offered_mechanism(self._at)
            if offered and (offered == "CURVE") != secured:
                event = mechanism_mismatch(secured)
        return HandshakeRefused(f"{self._at}: {event.reason}", event.next_step)

    def _silence(self) -> BusError:
        if self._watch.reached:
            return HandshakeRefused(
                f"something accepts connections at {self._at} but does not complete the handshake",
                "it is no msmon daemon, or it is stopped or overloaded",
            )
        return DaemonUnreachable(
            f"nobody answers at {self._at}",
            "check host, port and firewall, and that msmon-daemon runs with --listen",
        )

    def _exchange(self, message: Message, deadline_s: float) -> Envelope:
        message_id = f"c{next(self._ids)}"
        try:
            self._socket.send_multipart(encode(message, message_id), zmq.NOBLOCK)
        except zmq.Again:
            raise self._gone() from None
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._watch.socket, zmq.POLLIN)
        while True:
            remaining_ms = max(0, int((deadline_s - time.monotonic()) * 1000))
            ready = dict(poller.poll(remaining_ms))
            if self._socket in ready:
                frames = self._socket.recv_multipart()
                envelope = decode(frames, sender="the daemon", receiver="this msmon")
                if envelope.message_id == message_id:
                    return _accepted(envelope)
            elif self._watch.socket in ready:
                self._require_connection()
            else:
                raise DaemonUnreachable(
                    f"the daemon at {self._at} did not answer in time", "give a longer --timeout"
                )

    def _require_connection(self) -> None:
        if any(event.state != "connected" for event in self._watch.events()):
            raise self._gone()

    def _gone(self) -> DaemonUnreachable:
        return DaemonUnreachable(
            f"the daemon at {self._at} went away before it answered", "see its log for the reason"
        )

    @property
    def _at(self) -> str:
        return self._endpoint.url


def _accepted(envelope: Envelope) -> Envelope:
    if isinstance(envelope.message, Refused):
        raise CommandRefused(envelope.message.reason, envelope.message.next_step)
    return envelope
