"""Commands in progress: a task for each, an answer to each, a line in the audit log for each."""

from __future__ import annotations

import asyncio
import logging

from msmon.bus import messages
from msmon.bus.messages import Refused, Reply
from msmon.daemon.access.audit import AuditLog
from msmon.daemon.access.audit_lines import CommandRequest
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.shares import Resource, Shares
from msmon.daemon.commands.tracing import Tracing
from msmon.daemon.connection import Connection
from msmon.daemon.standing.commands import StandingCommands
from msmon.daemon.transport import Transport
from msmon.errors import MsmonError

_log = logging.getLogger(__name__)


class Requests:
    """Carries out commands side by side, because each waits for agents.

    Every method runs on the broker's loop, and so do the tasks.
    """

    def __init__(
        self,
        monitoring: StandingCommands,
        tracing: Tracing,
        audit: AuditLog,
        shares: Shares,
        transport: Transport,
    ) -> None:
        self._monitoring = monitoring
        self._tracing = tracing
        self._audit = audit
        self._shares = shares
        self._transport = transport
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, connection: Connection, peer: Peer, request: CommandRequest, message_id: str
    ) -> None:
        """Begin to carry a command out. Raises ShareUsedUp if its owner has too many begun."""
        self._shares.take(peer.owner, Resource.REQUESTS)
        task = asyncio.get_running_loop().create_task(
            self._carry_out(connection, peer, request, message_id)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Give up what is in progress: the daemon stops."""
        for task in self._tasks:
            task.cancel()

    async def _carry_out(
        self, connection: Connection, peer: Peer, request: CommandRequest, message_id: str
    ) -> None:
        connection.waiting += 1
        try:
            answer = await self._answer(request, peer)
        finally:
            connection.waiting -= 1
            self._shares.give_back(peer.owner, Resource.REQUESTS)
        self._audit.note(peer, request, answer)
        self._transport.send(connection.route, answer, message_id)

    async def _answer(self, request: CommandRequest, peer: Peer) -> Reply | Refused:
        try:
            if isinstance(request, messages.TraceRequest):
                return await self._tracing.carry_out(request, peer)
            return await self._monitoring.carry_out(request, peer)
        except MsmonError as error:
            return Refused(error.message, error.next_step)
        except Exception:  # noqa: BLE001 - the caller gets an answer whatever happens
            _log.exception("a command could not be carried out", extra={"owner": peer.owner})
            return Refused("the daemon failed to carry this out", "its log says why")
