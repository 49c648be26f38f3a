"""The daemon's end of the wire: reads messages in turns, and sends without waiting.

Reading and sending are together because they share the ROUTER's descriptor. libzmq reports new
messages on it only once, and a send may take that report away. So every send is followed by
another look for messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from msmon.bus.codec import encode
from msmon.bus.messages import Message, Refused
from msmon.errors import MsmonError

_log = logging.getLogger(__name__)

_GATHER_S = 0.01
_GATHER_HEARTBEATS_S = 0.1
"""Pause between the first message and reading. It is longer while nothing but heartbeats comes:
a thousand agents would wake the daemon up for each of theirs, which costs more than to read it."""
_MESSAGES_PER_TURN = 100
_TURN_S = 0.05
"""Number of messages, and time spent on them, after which other events of the loop are served.
One of these is the authenticator, without which no new connection gets in."""


class Transport:
    """Reads one ROUTER from ``start`` to ``close``. The broker's loop writes all of its state.

    ``handle`` is called with the frames of each message. It returns whether the message was
    only a heartbeat.
    """

    def __init__(self, router: zmq.Socket[Any], handle: Callable[[list[zmq.Frame]], bool]) -> None:
        self._router = router
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._receive_due = False
        self._only_heartbeats = False
        """Whether the last reading found nothing else."""
        self._closed = False
        self._gathering: asyncio.Handle | None = None
        self.failures = 0
        """Messages whose handling, or whose answer, failed by a fault of the daemon's own."""

    def start(self) -> None:
        """Begin to read."""
        self._loop.add_reader(self._router.FD, self._gather)
        self._loop.call_soon(self.receive)

    def close(self) -> None:
        """Read no more. Sending stays possible, for the last acknowledgements."""
        self._closed = True
        if self._gathering is not None:
            self._gathering.cancel()
        self._loop.remove_reader(self._router.FD)

    def _gather(self) -> None:
        """Read a little later: what has begun to arrive is then read in one turn."""
        self._loop.remove_reader(self._router.FD)
        self._receive_due = True
        pause_s = _GATHER_HEARTBEATS_S if self._only_heartbeats else _GATHER_S
        self._gathering = self._loop.call_later(pause_s, self._read_gathered)

    def _read_gathered(self) -> None:
        self._only_heartbeats = True
        self._loop.add_reader(self._router.FD, self._gather)
        self.receive()

    def receive(self) -> None:
        """Handle what has arrived, for one turn at most; the rest gets another turn soon."""
        self._receive_due = False
        end_s = time.perf_counter() + _TURN_S
        for _ in range(0 if self._closed else _MESSAGES_PER_TURN):
            if time.perf_counter() > end_s:
                break
            try:
                frames = _received(self._router)
            except zmq.ZMQError:  # nothing is left, or the socket is closed
                return
            try:
                self._only_heartbeats &= self._handle(frames)
            except Exception:  # noqa: BLE001 - one message must never end the daemon
                self.failures += 1
                _log.exception("a message could not be handled")
        self._receive_soon()

    def _receive_soon(self) -> None:
        if not self._receive_due and not self._closed:
            self._receive_due = True
            self._loop.call_soon(self.receive)

    def send(
        self,
        route: bytes,
        message: Message,
        message_id: str = "",
        payload: Sequence[bytes] = (),
    ) -> bool:
        """Send without waiting. False if the peer is gone, or does not read what it is sent."""
        frames = self._encoded(message, message_id, payload)
        try:
            self._router.send_multipart([route, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            _log.debug("answer dropped: %s", error)
            return False
        self._receive_soon()
        return True

    def _encoded(self, message: Message, message_id: str, payload: Sequence[bytes]) -> list[bytes]:
        """Return the frames of a message; where it can't be sent, those of a refusal.

        Whoever waits for an answer gets one, whatever is wrong with it.
        """
        try:
            return encode(message, message_id, payload)
        except MsmonError as error:
            return encode(Refused(error.message), message_id)
        except Exception:  # noqa: BLE001 - see above
            self.failures += 1
            _log.exception("a %r message could not be encoded", message.TYPE)
            return encode(Refused("the daemon failed to answer", "its log says why"), message_id)


def _received(router: zmq.Socket[Any]) -> list[zmq.Frame]:
    """Return the next message as pyzmq's ``recv_multipart`` does, at half its cost."""
    frames = [router.recv(zmq.NOBLOCK, copy=False)]
    while frames[-1].more:
        frames.append(router.recv(copy=False))
    return frames
