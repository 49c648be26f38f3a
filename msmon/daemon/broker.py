"""The daemon's loop: receive, validate, authorise, act, answer with the same id.

One ROUTER serves agents and clients. Nothing here waits: sends fail at once for a peer
that is gone or full, slow work is done by the outputs or in a thread, and commands
that wait for agents are tasks of their own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from msmon import __version__
from msmon.bus import messages
from msmon.bus.codec import MAX_FRAMES, Envelope, decode, encode, message_id_of
from msmon.bus.messages import Message, Refused, Reply, Welcome
from msmon.bus.rows import DaemonRow, Row
from msmon.bus.words import Outcome
from msmon.daemon.access.approvals import Approvals
from msmon.daemon.access.audit import AuditLog, CommandRequest
from msmon.daemon.access.authentication import Authenticator, Peer
from msmon.daemon.access.identity import confirmed
from msmon.daemon.access.roles import COMMANDS, REGISTERS
from msmon.daemon.access.shares import Resource, Shares
from msmon.daemon.commands.base import probing
from msmon.daemon.commands.commander import Commander
from msmon.daemon.commands.monitoring import Monitoring
from msmon.daemon.commands.tracing import Tracing
from msmon.daemon.connections import PRICES, REFUSED_PRICE, Connection, Connections
from msmon.daemon.limited_log import LimitedLog
from msmon.daemon.outputs.outputs import OnCommit, Outputs
from msmon.daemon.registry import Process, Registry
from msmon.daemon.rows import output_row, status_row
from msmon.daemon.selection import Chooser, select, unknown_text
from msmon.daemon.streams import STREAM_TYPES, Streams
from msmon.daemon.timing import Timing
from msmon.errors import CommandRefused, MsmonError

_log = logging.getLogger(__name__)

FROM_AGENTS = (*STREAM_TYPES, messages.Status, messages.Answer, messages.Goodbye)

_GATHER_S = 0.01
_GATHER_HEARTBEATS_S = 0.1
"""Pause between the first message and reading, the longer one while nothing but heartbeats
comes: to wake up for each of a thousand agents costs more than to read what it says."""
_MESSAGES_PER_TURN = 100
_TURN_S = 0.05
"""Messages taken, or time spent on them, before other events of the loop get their turn: new
connections wait for the authenticator, which lives on the same loop."""
_OUTPUTS_CLOSE_S = 4.0
NO_LONGER_ALLOWED = "this key or user is no longer allowed"
_LAST_WORDS_S = 0.2
"""For a refusal to reach its peer before the connection is closed."""


@dataclass(frozen=True)
class DaemonFacts:
    """What a client may know of the daemon itself."""

    host: str
    pid: int
    uid: int
    insecure: bool
    listens: tuple[str, ...]


class Broker:
    """Serves one bound ROUTER until :meth:`close`. Lives on one asyncio loop."""

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
    ) -> None:
        self._router = router
        self._authenticator = authenticator
        self._audit = audit
        self._approvals = approvals
        self._facts = facts
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._limited = LimitedLog(_log)
        self._shares = shares
        self._connections = Connections(
            router, self._limited, time.monotonic(), self._shares, connection_budget
        )
        self._allow_list_changes = 0
        self._receive_due = False
        self._quiet = False
        """Whether there were only heartbeats in the last reading."""
        self._closing = False
        self._gathering: asyncio.Handle = self._loop.call_soon(lambda: None)
        self._requests: set[asyncio.Task[None]] = set()
        self._refreshing: asyncio.Future[None] | None = None
        self._outputs = outputs(self._committed)
        self._outputs.count_against(self._shares)
        self._registry = Registry(timing.lost_after_s, timing.keep_gone_s, self._shares)
        self._streams = Streams(
            self._outputs,
            approvals,
            self._acknowledge,
            self._on_loop,
            timing.grace_s,
            timing.keep_gone_s,
            self._shares,
        )
        self._commander = Commander(self._command)
        self._monitoring = Monitoring(
            self._registry, self._streams, self._outputs, approvals, self._commander, facts.host
        )
        self._tracing = Tracing(self._registry, self._commander, facts.host)

    def start(self) -> None:
        """Begin to serve."""
        self._authenticator.allow_list.refresh()
        zap = self._authenticator.socket
        self._loop.add_reader(zap.FD, self._authenticator.answer_requests)
        self._loop.add_reader(self._router.FD, self._gather)
        self._loop.add_reader(self._connections.socket.FD, self._take_connections)
        self._loop.call_soon(self._authenticator.answer_requests)
        self._loop.call_soon(self._receive)
        self._check()

    async def close(self) -> None:
        """Stop serving; write out what the outputs hold, and acknowledge it."""
        self._closing = True
        self._gathering.cancel()
        self._check_handle.cancel()
        self._loop.remove_reader(self._router.FD)
        self._loop.remove_reader(self._authenticator.socket.FD)
        self._loop.remove_reader(self._connections.socket.FD)
        self._connections.close()
        for request in self._requests:
            request.cancel()
        self._streams.close_lost()
        await self._loop.run_in_executor(None, self._outputs.close, _OUTPUTS_CLOSE_S)
        await self._loop.run_in_executor(None, self._approvals.close)
        await self._loop.run_in_executor(None, self._audit.close)
        await asyncio.sleep(0)  # the acknowledgements of the last commit

    def _take_connections(self) -> None:
        """Note new connections; under a flood the authenticator gets its turn between."""
        if not self._closing and self._connections.take_events():
            self._loop.call_soon(self._take_connections)

    # --- receiving ------------------------------------------------------------------

    def _gather(self) -> None:
        """Read a little later what has begun to arrive."""
        self._loop.remove_reader(self._router.FD)
        self._receive_due = True
        pause_s = _GATHER_HEARTBEATS_S if self._quiet else _GATHER_S
        self._gathering = self._loop.call_later(pause_s, self._read_gathered)

    def _read_gathered(self) -> None:
        self._quiet = True
        self._loop.add_reader(self._router.FD, self._gather)
        self._receive()

    def _receive(self) -> None:
        """Take what has arrived. The ROUTER's descriptor tells of new messages only once."""
        self._receive_due = False
        end_s = time.perf_counter() + _TURN_S
        for _ in range(0 if self._closing else _MESSAGES_PER_TURN):
            if time.perf_counter() > end_s:
                break
            try:
                frames = _received(self._router)
            except zmq.ZMQError:  # Again: nothing left; or closed
                return
            try:
                self._handle(frames)
            except Exception:  # noqa: BLE001 - one message must never end the daemon
                self._limited.exception("a message could not be handled")
        self._receive_soon()

    def _receive_soon(self) -> None:
        if not self._receive_due and not self._closing:
            self._receive_due = True
            self._loop.call_soon(self._receive)

    def _handle(self, frames: list[zmq.Frame]) -> None:
        route = frames[0].bytes
        body = [frame.bytes for frame in frames[1 : MAX_FRAMES + 2]]  # one more than allowed
        connection = self._connections.heard(route, frames[-1], time.monotonic())
        if connection.ended:
            return
        peer = self._authenticator.peer(connection.address, connection.credential)
        if peer is None:
            self._refuse(connection, body, CommandRefused(NO_LONGER_ALLOWED), "?")
            self._loop.call_later(_LAST_WORDS_S, self._hang_up_revoked)
            return
        self._connections.belongs_to(connection, peer.owner)
        if connection.ended:
            return
        start_s = time.perf_counter()
        try:
            envelope = decode(body, sender="the sender", receiver="the daemon")
            if not peer.may_send(type(envelope.message)):
                raise self._forbidden(peer, envelope.message)
            self._charge(connection, PRICES.get(type(envelope.message), 0.0), peer.name)
            self._act(connection, peer, envelope, len(body[0]))
        except MsmonError as error:
            self._refuse(connection, body, error, peer.owner)
            self._charge(connection, REFUSED_PRICE, peer.name)
        used_s = time.perf_counter() - start_s
        self._connections.charge_time(connection, peer.owner, used_s)

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
        self, connection: Connection, body: list[bytes], error: MsmonError, sender: str
    ) -> None:
        if not connection.logged:
            connection.logged = True
            self._limited.warning(
                "message from %s refused: %s", sender, error.message, owner=sender
            )
        self._send(connection.route, Refused(error.message, error.next_step), message_id_of(body))

    # --- acting -----------------------------------------------------------------------

    def _act(
        self, connection: Connection, peer: Peer, envelope: Envelope, header_bytes: int
    ) -> None:
        route, message, message_id = connection.route, envelope.message, envelope.message_id
        self._quiet = self._quiet and isinstance(message, messages.Status)
        if isinstance(message, messages.Hello):
            self._greet(route, peer, message, message_id)
        elif isinstance(message, messages.StatusRequest):
            self._send(route, self._status(message, peer), message_id)
        elif isinstance(message, messages.VersionRequest):
            self._send(route, Reply(Outcome.OK, daemon=self._daemon_row(peer)), message_id)
        elif isinstance(message, COMMANDS):
            self._begin_request(connection, peer, message, message_id)
        elif isinstance(message, FROM_AGENTS):
            self._act_for_agent(route, envelope, header_bytes)
        else:
            raise CommandRefused(f"this daemon can't carry out a {message.TYPE!r}")

    def _act_for_agent(self, route: bytes, envelope: Envelope, header_bytes: int) -> None:
        message = envelope.message
        process = self._registry.of_route(route)
        if process is None:
            raise CommandRefused("no process is registered on this connection", "say hello first")
        now_s = time.monotonic()
        self._registry.heard(process, now_s)
        if isinstance(message, STREAM_TYPES):
            self._streams.take(process, message, envelope.payload)
        elif isinstance(message, messages.Status):
            self._registry.keep_status(process, message, header_bytes)
        elif isinstance(message, messages.Answer):
            self._commander.answered(process, envelope.message_id, message)
        elif isinstance(message, messages.Goodbye):
            owner = {"owner": process.peer.owner}
            _log.info("%s ended: %s", process.label, message.reason, extra=owner)
            self._registry.goodbye(process, now_s)
            self._commander.gone(process)

    def _greet(self, route: bytes, peer: Peer, hello: messages.Hello, message_id: str) -> None:
        if hello.process is not None:
            if peer.role not in REGISTERS:
                raise CommandRefused(f"{peer.name} may not register processes")
            former = self._registry.of_route(route)
            carrier = hello.role == "carrier"
            process = self._registry.register(
                confirmed(hello.process, peer, carrier),
                peer,
                route,
                hello.version,
                time.monotonic(),
                carrier,
            )
            if process is not former:
                _log.info(
                    "%s registered, %s, msmon %s",
                    *(process.label, peer.name, hello.version),
                    extra={"owner": peer.owner},
                )
        welcome = Welcome(__version__, self._facts.host, self._facts.pid, self._timing.heartbeat_s)
        self._send(route, welcome, message_id)

    def _begin_request(
        self, connection: Connection, peer: Peer, request: CommandRequest, message_id: str
    ) -> None:
        self._shares.take(peer.owner, Resource.REQUESTS)
        task = self._loop.create_task(self._carry_out(connection, peer, request, message_id))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _carry_out(
        self, connection: Connection, peer: Peer, request: CommandRequest, message_id: str
    ) -> None:
        answer: Reply | Refused
        connection.waiting += 1
        try:
            if isinstance(request, messages.TraceRequest):
                answer = await self._tracing.carry_out(request, peer)
            else:
                answer = await self._monitoring.carry_out(request, peer)
        except MsmonError as error:
            answer = Refused(error.message, error.next_step)
        except Exception:  # noqa: BLE001 - the caller gets an answer whatever happens
            self._limited.exception("a command could not be carried out")
            answer = Refused("the daemon failed to carry this out", "its log says why")
        finally:
            connection.waiting -= 1
            self._shares.give_back(peer.owner, Resource.REQUESTS)
        self._audit.note(peer, request, answer)
        self._send(connection.route, answer, message_id)

    def _status(self, request: messages.StatusRequest, peer: Peer) -> Reply:
        known = self._registry.all()
        now_s = time.monotonic()
        chooser = Chooser(request.selection)
        shown = [process for process in known if chooser.matches(process)]
        rows: list[Row] = [
            status_row(process, peer, self._streams, self._outputs, now_s) for process in shown
        ]
        selected = select(request.selection, known, self._facts.host, now_s, probing(peer))
        daemon = self._daemon_row(peer)
        if shown:
            return Reply(Outcome.OK, unknown_text(selected.missing), rows=rows, daemon=daemon)
        return Reply(selected.outcome, selected.text, selected.next_step, daemon=daemon)

    def _daemon_row(self, peer: Peer) -> DaemonRow:
        return DaemonRow(
            version=__version__,
            protocol=f"{messages.PROTOCOL_MAJOR}.{messages.PROTOCOL_MINOR}",
            host=self._facts.host,
            pid=self._facts.pid,
            uid=self._facts.uid,
            insecure=self._facts.insecure,
            listens=list(self._facts.listens),
            sinks=[output_row(row, peer) for row in self._outputs.status()],
            refused_messages=self._limited.count,
            refused_connections=self._authenticator.refused_count,
        )

    # --- sending ------------------------------------------------------------------------

    def _send(self, route: bytes, message: Message, message_id: str = "") -> bool:
        """Send without waiting; False when the peer is gone or does not take its messages."""
        try:
            frames = encode(message, message_id)
        except MsmonError as error:
            frames = encode(Refused(error.message), message_id)
        try:
            self._router.send_multipart([route, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            _log.debug("answer dropped: %s", error)
            return False
        self._receive_soon()  # sending may have consumed the descriptor's notice
        return True

    def _command(self, process: Process, command: messages.Command, command_id: str) -> bool:
        return self._send(process.route, command, command_id)

    def _acknowledge(self, process: Process, session_id: str, seq: int) -> None:
        self._send(process.route, messages.Acknowledged(session_id, seq))

    # --- other events ---------------------------------------------------------------------

    def _committed(self, session_id: str, seq: int) -> None:
        self._on_loop(lambda: self._streams.committed(session_id, seq))

    def _on_loop(self, call: Callable[[], None]) -> None:
        """Run ``call`` on the loop, from any thread; dropped when the loop has ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _check(self) -> None:
        """Look for what is overdue, again and again."""
        self._check_handle = self._loop.call_later(self._timing.check_interval_s, self._check)
        self._receive()  # what waits already proves that its sender lives
        now_s = time.monotonic()
        for process in self._registry.expire(now_s):
            owner = {"owner": process.peer.owner}
            silence_s = self._timing.lost_after_s
            _log.warning("%s is lost: silent for %.0f s", process.label, silence_s, extra=owner)
            self._commander.gone(process)
        self._streams.expire(now_s)
        self._connections.check(now_s)
        if self._allow_list_changes != self._authenticator.allow_list.changes:
            self._hang_up_revoked()
        if self._refreshing is None or self._refreshing.done():
            refresh = self._authenticator.allow_list.refresh
            self._refreshing = self._loop.run_in_executor(None, refresh)

    def _hang_up_revoked(self) -> None:
        """Close the connections of those that may not have one any more."""
        self._allow_list_changes = self._authenticator.allow_list.changes
        self._connections.hang_up_unless(
            lambda address, credential: self._authenticator.peer(address, credential) is not None
        )


def _received(router: zmq.Socket[Any]) -> list[zmq.Frame]:
    """Return the next message as pyzmq's ``recv_multipart`` does, at half its cost."""
    frames = [router.recv(zmq.NOBLOCK, copy=False)]
    while frames[-1].more:
        frames.append(router.recv(copy=False))
    return frames
