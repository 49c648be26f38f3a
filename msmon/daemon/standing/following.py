"""Has the processes follow their orders: starts what does not run, and remembers why not."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Sequence

from msmon.bus.messages import MonitorRequest, Reply
from msmon.bus.rows import AnswerRow, outcome_of
from msmon.bus.words import MonitorAction
from msmon.daemon.access.authentication import Peer
from msmon.daemon.commands.command_base import Order
from msmon.daemon.commands.monitoring import Monitoring
from msmon.daemon.process import Process
from msmon.daemon.registry import Registry
from msmon.daemon.rows import identity
from msmon.daemon.standing.order import StandingOrder
from msmon.daemon.standing.orders import Orders
from msmon.daemon.standing.standings import FOR_A_TRACE, Standings
from msmon.errors import MsmonError

TIMEOUT_S = 10.0
"""For all that a start takes, as a command's ``--timeout``."""

RETRY_HEARTBEATS = 30
"""Heartbeats, so a minute by default, between two attempts in a process that refused."""

STRAY_HEARTBEATS = 5
"""Heartbeats that a stop may take to reach a process and to be told of by its status."""

_log = logging.getLogger(__name__)

Note = Callable[[Peer, MonitorRequest, Reply], None]
"""Writes a line of the audit log."""


class Follower:
    """Every method runs on the broker's loop, and only there; so do the starts, as tasks.

    ``note`` writes what was started into the audit log. What fails is logged when its reason is
    a new one for the process.
    """

    def __init__(
        self,
        orders: Orders,
        standings: Standings,
        registry: Registry,
        monitoring: Monitoring,
        heartbeat_s: float,
        note: Note,
    ) -> None:
        self._orders = orders
        self._standings = standings
        self._registry = registry
        self._monitoring = monitoring
        self._retry_s = RETRY_HEARTBEATS * heartbeat_s
        self._stray_after_s = STRAY_HEARTBEATS * heartbeat_s
        self._note = note
        self._tasks: set[asyncio.Task[list[AnswerRow]]] = set()

    def check(self, now_s: float) -> None:
        """Begin to start monitoring in every process that should be monitored and is not.

        And to stop it where it comes from an order that does not hold any more: the process was
        cut off when the order ended.
        """
        due: dict[tuple[str, str], list[Process]] = {}
        stray = []
        present = self._registry.present()
        for process in present:
            order = self._standings.order_of(process)
            if order is not None and self._is_due(process, now_s):
                due.setdefault(order.key, []).append(process)
            elif self._is_stray(process, order, now_s):
                stray.append(process)
        for key, processes in due.items():
            order = self._orders.find(key)
            if order is not None:
                self._begin(order, processes)
        if stray:
            self._run(self._stop(stray))
        self._standings.keep_only(present)

    async def start_now(self, order: StandingOrder, timeout_s: float) -> list[AnswerRow]:
        """Have all processes follow an order that was just given; return a row for each.

        Raises MsmonError where there are some, and the export works for none of them.
        """
        rows: list[AnswerRow] = []
        to_start = []
        peer = self._orders.peer_of(order)
        for process in self._registry.live():
            if not self._holds(order, process) or self._standings.only_waits(process):
                continue
            reason = self._standings.reason_to_wait(process)
            if not reason:
                to_start.append(process)
            elif peer.may_command(process.peer):
                rows.append(AnswerRow(**identity(process, peer), ok=True, text=reason))
        started = await self._begin(order, to_start, timeout_s, True) if to_start else []
        return [*started, *rows]

    def cancel(self) -> None:
        """Give up what is in progress: the daemon stops."""
        for task in self._tasks:
            task.cancel()

    def _is_due(self, process: Process, now_s: float) -> bool:
        following = self._standings.following(process)
        reason = self._standings.reason_to_wait(process)
        if reason == FOR_A_TRACE:
            following.tried_s = -math.inf  # what it may have refused for is over then
        if reason or following.busy or now_s - following.tried_s < self._retry_s:
            return False
        return not self._standings.only_waits(process)

    def _begin(
        self,
        order: StandingOrder,
        processes: Sequence[Process],
        timeout_s: float = TIMEOUT_S,
        raising: bool = False,
    ) -> asyncio.Task[list[AnswerRow]]:
        now_s = time.monotonic()
        for process in processes:
            following = self._standings.following(process)
            following.busy, following.tried_s = True, now_s
        return self._run(self._start(order, processes, timeout_s, raising))

    def _run(self, work: Coroutine[None, None, list[AnswerRow]]) -> asyncio.Task[list[AnswerRow]]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _is_stray(self, process: Process, order: StandingOrder | None, now_s: float) -> bool:
        """Whether a process has a session of an order that does not hold for it, for a while.

        A stop that is under way has its time first.
        """
        following, status = self._standings.following(process), process.status
        comes_from = status.settings.order if status is not None and status.settings else None
        if not comes_from or (order is not None and order.name == comes_from):
            following.stray_s = -math.inf
            return False
        if following.stray_s == -math.inf:
            following.stray_s = now_s
        if following.busy or now_s - following.stray_s < self._stray_after_s:
            return False
        following.stray_s = now_s + self._retry_s
        return True

    async def _stop(self, processes: Sequence[Process]) -> list[AnswerRow]:
        """Stop sessions whose orders hold no more."""
        for process in processes:
            text = "%s: its session is of a standing order that holds no more, and is stopped"
            _log.info(text, process.label, extra={"owner": process.peer.owner})
        request = MonitorRequest(MonitorAction.STOP, timeout_s=TIMEOUT_S)
        peers = {process.peer.owner: process.peer for process in processes}
        rows = []
        for owner, peer in peers.items():
            of_owner = [process for process in processes if process.peer.owner == owner]
            deadline_s = time.monotonic() + TIMEOUT_S
            rows += await self._monitoring.ask(of_owner, Order(request, peer, {}, deadline_s))
        return rows

    async def _start(
        self, order: StandingOrder, processes: Sequence[Process], timeout_s: float, raising: bool
    ) -> list[AnswerRow]:
        """Start monitoring in processes; return a row for each, in their order."""
        peer = self._orders.peer_of(order)
        request = MonitorRequest(
            MonitorAction.START,
            dict(order.fields),
            order.selection,
            timeout_s,
            always=True,
            name=order.name,
        )
        try:
            fields = await self._monitoring.checked(request, peer)
            deadline_s = time.monotonic() + timeout_s
            rows = await self._monitoring.ask(
                processes,
                Order(request, peer, fields, deadline_s, lambda item: self._holds(order, item)),
            )
        except MsmonError as error:
            if raising:
                raise
            rows = [
                AnswerRow(
                    **identity(process, peer),
                    ok=False,
                    text=error.message,
                    next_step=error.next_step,
                )
                for process in processes
            ]
        finally:
            for process in processes:
                self._standings.following(process).busy = False
        for process, row in zip(processes, rows):
            self._take(order, process, row)
        if any(row.ok for row in rows) and not raising:  # else its command has a line of its own
            self._note(peer, request, Reply(outcome_of(rows), rows=[*rows]))
        return rows

    def _holds(self, order: StandingOrder, process: Process) -> bool:
        """Whether an order still holds for a process: a stop may have come meanwhile."""
        now = self._standings.order_of(process)
        return now is not None and now.key == order.key

    def _take(self, order: StandingOrder, process: Process, row: AnswerRow) -> None:
        following = self._standings.following(process)
        if row.ok:
            following.session_id, following.problem = row.session_id or "", ""
            return
        problem = "; ".join(filter(None, [row.text, row.next_step]))
        if problem != following.problem:
            following.problem = problem
            _log.warning(
                "%s can't follow the order %s: %s",
                *(process.label, order.name, row.text),
                extra={"owner": process.peer.owner},
            )
