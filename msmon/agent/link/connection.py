"""One connection of the agent to a daemon, from connect to close."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from msmon.agent.link.notices import Notices
from msmon.bus import sockets
from msmon.bus.codec import Envelope, decode, encode, message_id_of
from msmon.bus.endpoints import Endpoint
from msmon.bus.messages import Answer, Message
from msmon.errors import ProtocolMismatch, UsageError

_RECEIVED_PER_TURN = 64


class ConnectionLost(Exception):
    """This connection has ended or never came about. A new one may succeed."""


class Connection:
    """A DEALER socket with its :class:`~msmon.bus.sockets.HandshakeWatch`; a context manager.

    Used and written by the link's thread only. Frames that the socket does not take at once
    stay in ``backlog`` and are sent first next time, so messages keep their order. A notice
    from another thread ends :meth:`wait`.

    When the daemon closes the connection, libzmq makes another one by itself after 100 ms. The
    daemon refuses every message on it until a hello has come. So all methods that send raise
    ConnectionLost once the first connection has ended, and the link makes a new object and begins
    with a hello.
    """

    def __init__(self, context: zmq.Context[Any], endpoint: Endpoint, notices: Notices) -> None:
        self.backlog: deque[list[bytes]] = deque()
        self._socket, self._watch = sockets.connect(context, endpoint)
        self._notices = notices
        self._poller = zmq.Poller()
        self._poller.register(notices.descriptor, zmq.POLLIN)
        self._poller.register(self._watch.socket, zmq.POLLIN)
        self._poller.register(self._socket, zmq.POLLIN)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self._watch.close()
        self._socket.close()

    def wait_connected(self, limit_s: float, given_up: Callable[[], bool]) -> None:
        """Wait until the secured connection is made.

        Raises ConnectionLost when it is refused, not made within ``limit_s`` seconds, or no
        longer wanted.
        """
        deadline_s = time.monotonic() + limit_s
        while (left_s := deadline_s - time.monotonic()) > 0 and not given_up():
            if self.wait(left_s):
                return
        raise ConnectionLost("nothing answers at the daemon's socket")

    def wait(self, timeout_s: float) -> bool:
        """Wait until something arrives, there is a notice, or the time is over.

        Returns whether the connection has just been made. Raises ConnectionLost when it
        has ended or was refused.
        """
        wanted = zmq.POLLIN | zmq.POLLOUT if self.backlog else zmq.POLLIN
        self._poller.modify(self._socket, wanted)
        ready = dict(self._poller.poll(math.ceil(max(0.0, timeout_s) * 1000)))
        self._notices.clear_signal()
        return self._watch.socket in ready and self._connected()

    def _connected(self) -> bool:
        connected = False
        for event in self._watch.events():
            if event.state == "refused":
                raise ConnectionLost(f"{event.reason}; {event.next_step}")
            if event.state == "disconnected":
                raise ConnectionLost("the daemon has closed the connection")
            connected = event.state == "connected"
        return connected

    def received(self) -> Iterator[Envelope]:
        """Yield the messages that have arrived. An invalid one is answered with a refusal.

        Raises ConnectionLost when the daemon speaks another protocol.
        """
        for _ in range(_RECEIVED_PER_TURN):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                yield decode(frames, "the daemon", "this process")
            except ProtocolMismatch as error:
                raise ConnectionLost(str(error)) from None
            except UsageError as error:
                answer = Answer(False, error.message, error.next_step)
                self.send(answer, message_id_of(frames))

    def send(self, message: Message, message_id: str = "") -> None:
        """Send a message, after what is in the backlog."""
        self.send_frames(encode(message, message_id))

    def send_frames(self, frames: list[bytes]) -> None:
        """Send the frames of a message, after what is in the backlog."""
        self.backlog.append(frames)
        self.flush()

    def flush(self) -> bool:
        """Send the backlog; False when the socket does not take all of it now."""
        try:
            while self.backlog:
                self._connected()
                self._socket.send_multipart(self.backlog[0], zmq.NOBLOCK)
                self.backlog.popleft()
        except zmq.Again:
            return False
        return True

    def leave(self, limit_ms: int) -> None:
        """Let the socket go on sending what it has taken, at most so long after its close."""
        self._socket.setsockopt(zmq.LINGER, limit_ms)
