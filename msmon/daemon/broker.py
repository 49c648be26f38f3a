"""The daemon's loop: who has sent this message, may they, and who acts on it.

The broker makes the parts and connects them. ``Transport`` reads messages. The broker finds out
whose connection each came from, checks rights and prices, and hands it on: to ``Agents`` what
agents say, to ``Questions`` and ``Requests`` what clients ask. Nothing here waits, because one
peer would hold up all others. What takes time is a task, or is done by the outputs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import zmq

from msmon import __version__
from msmon.bus import messages
from msmon.bus.codec import MAX_FRAMES, Envelope, decode, header_of, message_id_of
from msmon.bus.messages import Message, Refused, Welcome
from msmon.daemon.access.approvals import Approvals
from msmon.daemon.access.audit import AuditLog
from msmon.daemon.access.authentication import Authenticator, Peer
from msmon.daemon.access.identity import still_runs
from msmon.daemon.access.roles import COMMANDS
from msmon.daemon.access.shares import Shares
from msmon.daemon.agents import FROM_AGENTS, Agents
from msmon.daemon.commands.commander import Commander
from msmon.daemon.commands.monitoring import Monitoring
from msmon.daemon.commands.questions import DaemonFacts, Questions
from msmon.daemon.commands.requests import Requests
from msmon.daemon.commands.tracing import Tracing
from msmon.daemon.connection import PRICES, REFUSED_PRICE, Connection, charged_s, status_refund_s
from msmon.daemon.connections import Connections
from msmon.daemon.outputs.outputs import OnCommit, Outputs
from msmon.daemon.process import Process
from msmon.daemon.recent.recent_windows import RecentWindows
from msmon.daemon.recent.shelf import KEPT_BYTES
from msmon.daemon.registry import Registry
from msmon.daemon.standing.commands import StandingCommands
from msmon.daemon.standing.following import Follower
from msmon.daemon.standing.orders import Orders
from msmon.daemon.standing.standings import Standings
from msmon.daemon.standing.store import OrderStore
from msmon.daemon.streams.streams import Streams
from msmon.daemon.timing import Timing
from msmon.daemon.transport import Transport
from msmon.errors import CommandRefused, MsmonError, ProtocolMismatch, UsageError

_log = logging.getLogger(__name__)

_OUTPUTS_CLOSE_S = 4.0
NO_LONGER_ALLOWED = "this key or user is no longer allowed"
_LAST_WORDS_S = 0.2
"""Time for a refusal to reach its peer before the connection is closed."""


class Broker:
    """Serves one bound ROUTER from ``start`` to ``close``. One asyncio loop writes its state."""

    def __init__(
        self,
        router: zmq.Socket[Any],
        authenticator: Authenticator,
        outputs: Callable[[OnCommit], Outputs],
        approvals: Approvals,
        audit: AuditLog,
        facts: DaemonFacts,
        timing: Timing,
        shares: Shares,
        connection_budget: int,
        recent: RecentWindows,
        orders: Orders,
        store: OrderStore,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._authenticator = authenticator
        self._approvals = approvals
        self._audit = audit
        self._timing = timing
        self._transport = Transport(router, self._handle)
        self._connections = Connections(router, time.monotonic(), shares, connection_budget)
        self._outputs = outputs(self._committed)
        self._outputs.count_against(shares)
        self._streams = Streams(
            self._outputs,
            approvals,
            self._acknowledge,
            self._on_loop,
            timing.grace_s,
            timing.keep_gone_s,
            recent,
            shares,
        )
        self._recent = recent
        self._orders, self._store = orders, store
        self._make_services(facts, shares)
        self._refused_messages = 0
        self._allow_list_changes = 0
        self._closing = False
        self._refreshing: asyncio.Future[None] | None = None

    def _make_services(self, facts: DaemonFacts, shares: Shares) -> None:
        """Make the parts that act on messages."""
        timing = self._timing
        registry = Registry(timing.lost_after_s, timing.keep_gone_s, shares, self._is_there)
        self._registry = registry
        commander = Commander(self._command)
        monitoring = Monitoring(
            registry, self._streams, self._outputs, self._approvals, commander, facts.host
        )
        tracing = Tracing(registry, commander, facts.host)
        standings = Standings(self._orders, registry)
        follower = Follower(
            self._orders, standings, registry, monitoring, timing.heartbeat_s, self._audit.note
        )
        self._follower = follower
        standing = StandingCommands(
            self._orders, self._store, standings, follower, monitoring, registry
        )
        welcome = Welcome(__version__, facts.host, facts.pid, self._timing.heartbeat_s)
        self._agents = Agents(registry, self._streams, commander, welcome, self._transport.send)
        self._questions = Questions(
            registry,
            self._streams,
            self._outputs,
            self._recent,
            standings,
            standing,
            facts,
            self._refusals,
        )
        self._requests = Requests(standing, tracing, self._audit, shares, self._transport)

    def start(self) -> None:
        """Begin to serve."""
        self._authenticator.allow_list.refresh()
        zap = self._authenticator.socket
        self._loop.add_reader(zap.FD, self._authenticator.answer_requests)
        self._loop.add_reader(self._connections.socket.FD, self._take_connections)
        self._loop.call_soon(self._authenticator.answer_requests)
        self._transport.start()
        self._check()

    async def close(self) -> None:
        """Stop serving. Write out what the outputs hold, and acknowledge it."""
        self._closing = True
        self._check_handle.cancel()
        self._transport.close()
        self._loop.remove_reader(self._authenticator.socket.FD)
        self._loop.remove_reader(self._connections.socket.FD)
        self._connections.close()
        self._requests.cancel()
        self._follower.cancel()
        self._streams.close_lost()
        await self._loop.run_in_executor(None, self._outputs.close, _OUTPUTS_CLOSE_S)
        await self._loop.run_in_executor(None, self._approvals.close)
        await self._loop.run_in_executor(None, self._store.close)
        await self._loop.run_in_executor(None, self._audit.close)
        await asyncio.sleep(0)  # Acknowledgements of the last commit are sent in this turn.

    # --- messages -----------------------------------------------------------------------

    def _handle(self, frames: list[zmq.Frame]) -> bool:
        """Act on one message; return whether it was only a heartbeat."""
        start_s = time.thread_time()
        body = [frame.bytes for frame in frames[1 : MAX_FRAMES + 2]]  # One more than allowed.
        connection = self._connections.heard(frames[0].bytes, frames[-1], time.monotonic())
        peer = None if connection.ended else self._peer_behind(connection, body)
        if peer is None:
            return False
        kind = self._act_or_refuse(connection, peer, body)
        used_s = charged_s(time.thread_time() - start_s, sum(map(len, body)))
        self._connections.charge_time(connection, peer.owner, used_s)
        return kind is messages.Status

    def _peer_behind(self, connection: Connection, body: list[bytes]) -> Peer | None:
        """Return who speaks; None if nobody who may, and then the connection ends."""
        peer = self._authenticator.peer(connection.address, connection.credential)
        if peer is None:
            self._refuse(connection, body, CommandRefused(NO_LONGER_ALLOWED), "?")
            self._loop.call_later(_LAST_WORDS_S, self._hang_up_revoked)
            return None
        self._connections.belongs_to(connection, peer.owner)
        return None if connection.ended else peer

    def _act_or_refuse(
        self, connection: Connection, peer: Peer, body: list[bytes]
    ) -> type[Message] | None:
        """Act on a message, or tell its sender why not; return its type if it was acted on."""
        try:
            envelope = self._decoded(connection, peer, body)
            if envelope is None:
                return None
            kind = type(envelope.message)
            if not peer.may_send(kind):
                raise self._forbidden(peer, envelope.message)
            self._charge(connection, PRICES.get(kind, 0.0), peer.name)
            self._act(connection, peer, envelope, len(body[0]))
        except MsmonError as error:
            self._refuse(connection, body, error, peer.owner)
            self._charge(connection, REFUSED_PRICE, peer.name)
            return None
        except Exception:
            self._transport.send(
                connection.route,
                Refused("the daemon failed to handle this", "its log says why"),
                message_id_of(body),
            )
            raise  # The transport counts and logs it.
        return kind

    def _decoded(self, connection: Connection, peer: Peer, body: list[bytes]) -> Envelope | None:
        """Return a message. None for one of a stream that can't be read: it is lost and counted.

        Example: an agent of a newer version sends a field that this daemon does not know. Raises
        what ``decode`` raises for all others.
        """
        try:
            return decode(body, sender="the sender", receiver="the daemon")
        except ProtocolMismatch:
            raise
        except UsageError as error:
            header, reason = header_of(body), error.message
            if not peer.may_send(messages.Records) or not self._agents.pass_over(
                connection.route, header, body[1:], reason
            ):
                raise
            self._note_refusal(connection, error, peer.owner)
            self._charge(connection, REFUSED_PRICE, peer.name)
            return None

    def _act(
        self, connection: Connection, peer: Peer, envelope: Envelope, header_bytes: int
    ) -> None:
        route, message, message_id = connection.route, envelope.message, envelope.message_id
        if isinstance(message, messages.Hello):
            self._agents.greet(route, peer, message, message_id, envelope.minor)
        elif isinstance(message, messages.StatusRequest):
            self._tell_status(connection, peer, message, message_id)
        elif isinstance(message, messages.WindowsRequest):
            self._tell_windows(connection, peer, message, message_id)
        elif isinstance(message, messages.VersionRequest):
            self._transport.send(route, self._questions.version(peer), message_id)
        elif isinstance(message, COMMANDS):
            self._requests.begin(connection, peer, message, message_id)
        elif isinstance(message, FROM_AGENTS):
            self._agents.act(route, envelope, header_bytes)
        else:
            raise CommandRefused(f"this daemon can't carry out a {message.TYPE!r}")

    def _tell_status(
        self, connection: Connection, peer: Peer, request: messages.StatusRequest, message_id: str
    ) -> None:
        start_s = time.thread_time()
        reply = self._questions.status(request, peer)
        self._transport.send(connection.route, reply, message_id)
        used_s = time.thread_time() - start_s
        connection.used_s -= status_refund_s(used_s, self._questions.strangers(peer))

    def _tell_windows(
        self, connection: Connection, peer: Peer, request: messages.WindowsRequest, message_id: str
    ) -> None:
        self._connections.require_read(connection, request.receipt)
        reply, frames = self._questions.windows(request, peer)
        items = len(reply.windows) + len(reply.notes)
        size_bytes = len(frames) + (1 + items) * KEPT_BYTES
        self._connections.await_receipt(connection, reply.receipt, size_bytes)
        self._transport.send(connection.route, reply, message_id, (frames,))

    def _forbidden(self, peer: Peer, message: Message) -> CommandRefused:
        error = CommandRefused(
            f"{peer.name} has the role {peer.role.value}, which may not send {message.TYPE!r}"
        )
        if isinstance(message, COMMANDS):
            self._audit.note(peer, message, Refused(error.message))
        return error

    def _charge(self, connection: Connection, price: float, name: str) -> None:
        if price and not connection.spend(price, time.monotonic()):
            self._connections.hang_up(connection, f"{name} sends too much")

    def _refuse(
        self, connection: Connection, body: list[bytes], error: MsmonError, owner: str
    ) -> None:
        self._note_refusal(connection, error, owner)
        refused = Refused(error.message, error.next_step)
        self._transport.send(connection.route, refused, message_id_of(body))

    def _note_refusal(self, connection: Connection, error: MsmonError, owner: str) -> None:
        """Count a message that is refused, and log the first of a connection."""
        self._refused_messages += 1
        if not connection.logged:
            connection.logged = True
            extra = {"owner": owner}
            _log.warning("message from %s refused: %s", owner, error.message, extra=extra)

    def _refusals(self) -> tuple[int, int]:
        """Return how many messages were refused, and how many connections at the door.

        A connection that was cut off later counts as a message.
        """
        troubles = self._refused_messages + self._connections.cut_off + self._transport.failures
        return troubles, self._authenticator.refused_count

    def _is_there(self, process: Process) -> bool:
        """Whether a process that says nothing still runs: by /proc, else by its connection.

        libzmq keeps the connection alive on a thread of its own, which needs no lock of Python.
        """
        runs = still_runs(process.info, process.peer)
        return self._connections.is_open(process.route) if runs is None else runs

    def _speaks_for_a_process(self, connection: Connection) -> bool:
        process = self._registry.of_route(connection.route)
        return process is not None and process.is_there

    def _command(self, process: Process, command: messages.Command, command_id: str) -> bool:
        return self._transport.send(process.route, command, command_id)

    def _acknowledge(self, process: Process, session_id: str, seq: int) -> None:
        self._transport.send(process.route, messages.Acknowledged(session_id, seq))

    # --- other events -------------------------------------------------------------------

    def _take_connections(self) -> None:
        """Note new connections. Under a flood the authenticator gets its turn in between."""
        if not self._closing and self._connections.take_events():
            self._loop.call_soon(self._take_connections)

    def _committed(self, session_id: str, seq: int) -> None:
        self._on_loop(lambda: self._streams.committed(session_id, seq))

    def _on_loop(self, call: Callable[[], None]) -> None:
        """Run ``call`` on the loop. May be called from any thread. Does nothing after its end."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _check(self) -> None:
        """Look for what is overdue, again and again."""
        self._check_handle = self._loop.call_later(self._timing.check_interval_s, self._check)
        self._transport.receive()  # First: a message that waits proves that its sender lives.
        now_s = time.monotonic()
        self._agents.expire(now_s)
        self._follower.check(now_s)
        self._connections.check(now_s, self._speaks_for_a_process)
        if self._allow_list_changes != self._authenticator.allow_list.changes:
            self._hang_up_revoked()
        if self._refreshing is None or self._refreshing.done():
            refresh = self._authenticator.allow_list.refresh
            self._refreshing = self._loop.run_in_executor(None, refresh)

    def _hang_up_revoked(self) -> None:
        """Close the connections of users and keys that are no longer allowed."""
        self._allow_list_changes = self._authenticator.allow_list.changes
        self._connections.hang_up_unless(
            lambda address, credential: self._authenticator.peer(address, credential) is not None
        )
