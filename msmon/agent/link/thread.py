"""The thread that owns the socket to the daemon.

It greets the daemon, sends heartbeats and what the collector leaves for it, and takes commands.
It never calls MSPTI, so it can answer while such a call blocks the collector. The daemon may
start later than the job, stop, and start again. So the link makes a new socket again and
again, with a growing pause in between, until the job ends.
"""

from __future__ import annotations

import dataclasses
import math
import random
import secrets
import time
import traceback
from collections.abc import Callable
from typing import Any

import zmq

from msmon.agent.agent_log import AgentLog
from msmon.agent.link.connection import Connection, ConnectionLost
from msmon.agent.link.notices import Notices
from msmon.agent.link.older_daemons import SO_FAR_MINOR, understood_by
from msmon.agent.link.pending import PendingCommands
from msmon.agent.link.uplink import Uplink
from msmon.bus.endpoints import Endpoint
from msmon.bus.messages import (
    Acknowledged,
    Command,
    Goodbye,
    Hello,
    Message,
    Refused,
    Status,
    Welcome,
)
from msmon.errors import BusError
from msmon.threads import NativeThread

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
REFUSED_PAUSE_S = 10.0
"""Pause before the next hello after the daemon has refused something."""

CONNECT_LIMIT_S = 2.0
"""A connection is given up after this time and the endpoint looked up again, because a new
daemon may have another key."""

GREETING_LIMIT_S = 5.0
SHORTEST_HEARTBEAT_S = 0.05
LEAVING_LIMIT_MS = 200
"""How long the last messages may take to leave the process once the link has ended."""

_MESSAGES_PER_TURN = 16
"""Data messages sent before looking for commands and the heartbeat again."""

_PENDING_CHECK_S = 0.5


class Link:
    """The thread and its state, which it alone writes, except ``_end_by_s``.

    ``_end_by_s`` is set once, by the thread that ends the agent. ``endpoint`` is called before
    every connection, ``hello`` and ``status`` before those messages are sent; all three on this
    thread.
    """

    def __init__(
        self,
        endpoint: Callable[[], Endpoint],
        hello: Callable[[], Hello],
        status: Callable[[], Status],
        uplink: Uplink,
        notices: Notices,
        pending: PendingCommands,
        log: AgentLog,
    ) -> None:
        self.cpu_s = 0.0
        self._endpoint = endpoint
        self._hello = hello
        self._status = status
        self._uplink = uplink
        self._notices = notices
        self._pending = pending
        self._log = log
        self._context: zmq.Context[Any] = zmq.Context()
        self._thread = NativeThread(self._run, "msmon-link")
        self._end_by_s: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._random = random.Random()  # the job's own random numbers stay what they are
        self._last_problem = ""
        self._last_warnings: tuple[str, ...] = ()
        self._greeting: Hello | None = None
        self._agent_id = secrets.token_hex(8)
        """Id of all hellos of this agent. Another program in the same process, after ``execv``, has
        another one, and the daemon ends what this one has left."""
        self._daemon_minor = 0
        """The minor version of the protocol that the daemon speaks."""
        self._names_parent = True
        """Whether hellos say who has started this process; an older daemon refuses them."""
        self._heartbeat_s = 2.0
        self._next_heartbeat_s = 0.0
        self._greet_again_s = 0.0
        """When to say hello again because the daemon refused something; 0: it has not."""

    # --- called from other threads ------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def shut_down(self, flush_s: float) -> None:
        """Have the thread send what is left within ``flush_s`` and end; returns at once."""
        self._end_by_s = time.monotonic() + flush_s
        self._notices.wake()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; False when it is still there."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while self._end_by_s is None:
            try:
                self._serve()
            except (BusError, ConnectionLost) as error:
                self._note_problem(str(error))
            except Exception as error:  # noqa: BLE001  boundary: the job must not notice
                lines = traceback.format_exception(type(error), error, error.__traceback__)
                self._log.write("".join(lines))
            self._uplink.disconnected()
            self.cpu_s = time.thread_time()
            self._pause()
        self._context.destroy()

    def _serve(self) -> None:
        """Make one connection and serve it until it is lost or the link is to end."""
        endpoint = self._endpoint()
        self._warn_of(endpoint.passed_over)
        with Connection(self._context, endpoint, self._notices) as connection:
            connection.wait_connected(CONNECT_LIMIT_S, self._ending)
            self._greet(connection)
            self._await_welcome(connection)
            self._begin()
            while not self._finished(connection):
                self._turn(connection)
            for frames in self._uplink.take_last_words():
                connection.send_frames(understood_by(self._daemon_minor, frames))
            connection.send(Goodbye("exit"))
            connection.leave(LEAVING_LIMIT_MS)

    def _await_welcome(self, connection: Connection) -> None:
        deadline_s = time.monotonic() + GREETING_LIMIT_S
        while True:
            connection.wait(deadline_s - time.monotonic())
            for envelope in connection.received():
                if isinstance(envelope.message, Welcome):
                    self._daemon_minor = envelope.minor
                    self._heartbeat_s = max(SHORTEST_HEARTBEAT_S, envelope.message.heartbeat_s)
                    self._pause_s = FIRST_PAUSE_S
                    self._note_problem("")
                    return
                if isinstance(envelope.message, Refused):
                    self._pause_s = REFUSED_PAUSE_S
                    self._say_less(envelope.message.reason)
                    raise ConnectionLost(f"refused by the daemon: {envelope.message.reason}")
                self._take(envelope.message, envelope.message_id)
            if time.monotonic() >= min(deadline_s, self._end_by_s or deadline_s):
                raise ConnectionLost("the daemon does not answer the greeting")

    def _greet(self, connection: Connection) -> None:
        self._greeting = self._own_hello()
        connection.send(self._greeting, self._agent_id)

    def _own_hello(self) -> Hello:
        hello = self._hello()
        if self._names_parent or hello.process is None:
            return hello
        return dataclasses.replace(hello, process=dataclasses.replace(hello.process, started_by=""))

    def _say_less(self, reason: str) -> None:
        """Leave out of the next hello what was refused, because an older daemon doesn't know it."""
        if "started_by" in reason:
            self._names_parent = False
            self._pause_s = FIRST_PAUSE_S

    def _begin(self) -> None:
        self._uplink.start_over(self._daemon_minor >= SO_FAR_MINOR)
        self._next_heartbeat_s = 0.0
        self._greet_again_s = 0.0

    def _turn(self, connection: Connection) -> None:
        """Wait for something to do, then do all of it: control first, data after."""
        connection.wait(self._wait_s())
        for envelope in connection.received():
            self._take(envelope.message, envelope.message_id)
        self._send_control(connection)
        self._send_data(connection)

    def _wait_s(self) -> float:
        wait_s = self._next_heartbeat_s - time.monotonic()
        if len(self._pending):
            wait_s = min(wait_s, _PENDING_CHECK_S)
        if self._end_by_s is not None:
            wait_s = min(wait_s, self._end_by_s - time.monotonic())
        return wait_s

    def _take(self, message: Message, message_id: str) -> None:
        if isinstance(message, Command):
            self._pending.accept(message_id, message)
        elif isinstance(message, Acknowledged):
            self._uplink.acknowledge(message.session_id, message.seq)
        elif isinstance(message, Refused):
            self._note_problem(f"the daemon refused a message: {message.reason}")
            self._greet_again_s = self._greet_again_s or time.monotonic() + REFUSED_PAUSE_S

    def _send_control(self, connection: Connection) -> None:
        for message_id, answer in self._notices.take_answers():
            if self._pending.answered(message_id):
                connection.send(answer, message_id)
        for message_id, answer in self._pending.overdue():
            connection.send(answer, message_id)
        now_s = time.monotonic()
        if self._greet_again_s and now_s >= self._greet_again_s:
            # A job may be suspended for longer than the daemon remembers it. Then the daemon
            # refuses its messages until it says hello again.
            self._greet(connection)
            self._begin()
        if self._notices.take_changed() or now_s >= self._next_heartbeat_s:
            self.cpu_s = time.thread_time()
            if self._own_hello() != self._greeting:  # a framework has been imported since
                self._greet(connection)
            connection.send(self._status())
            self._next_heartbeat_s = now_s + self._heartbeat_s

    def _send_data(self, connection: Connection) -> None:
        for _ in range(_MESSAGES_PER_TURN):
            if not connection.flush():
                return
            frames = self._uplink.take_so_far() or self._uplink.take()
            if frames is None:
                return
            connection.send_frames(understood_by(self._daemon_minor, frames))
        self._notices.wake()  # there may be more

    def _ending(self) -> bool:
        return self._end_by_s is not None

    def _finished(self, connection: Connection) -> bool:
        if self._end_by_s is None:
            return False
        all_sent = self._uplink.all_sent and not connection.backlog
        return all_sent or time.monotonic() >= self._end_by_s

    def _pause(self) -> None:
        """Wait before the next connection, a little differently in every rank."""
        if self._ending():
            return
        end_s = time.monotonic() + self._pause_s * self._random.uniform(0.75, 1.25)
        self._pause_s = max(self._pause_s, min(self._pause_s * 2, LONGEST_PAUSE_S))
        while not self._ending() and (left_s := end_s - time.monotonic()) > 0:
            poller = zmq.Poller()  # gevent replaces the one of ``select``
            poller.register(self._notices.descriptor, zmq.POLLIN)
            poller.poll(math.ceil(left_s * 1000))
            self._notices.clear_signal()

    def _warn_of(self, places: tuple[str, ...]) -> None:
        """Log which places were not trusted, once for as long as they stay the same."""
        if places != self._last_warnings:
            self._last_warnings = places
            for place in places:
                self._log.write(f"passed over: {place}")

    def _note_problem(self, text: str) -> None:
        """Log what keeps us from the daemon, once for each new reason."""
        if text != self._last_problem:
            self._last_problem = text
            self._log.write(text or "connected to the daemon")
