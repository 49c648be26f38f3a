"""What npu-monitor commands do to standing orders, beside what they do in the processes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable

from msmon.bus.messages import MonitorRequest, Reply, Selection
from msmon.bus.rows import OrderRow, outcome_of
from msmon.bus.words import MonitorAction, Outcome
from msmon.daemon.access.authentication import Peer
from msmon.daemon.commands.command_base import MAX_TIMEOUT_S, Order
from msmon.daemon.commands.monitoring import Monitoring
from msmon.daemon.registry import Registry
from msmon.daemon.selection import Chooser
from msmon.daemon.standing.following import Follower
from msmon.daemon.standing.order import (
    LeftAlone,
    StandingOrder,
    check_name,
    check_order_fields,
    covers,
    may_overlap,
    options_text,
    selection_text,
)
from msmon.daemon.standing.orders import Orders, StopEffect
from msmon.daemon.standing.standings import Standings
from msmon.daemon.standing.store import OrderStore
from msmon.errors import CommandRefused, MsmonError, UsageError


class StandingCommands:
    """Carries out npu-monitor requests. Every method runs on the broker's loop."""

    def __init__(
        self,
        orders: Orders,
        store: OrderStore,
        standings: Standings,
        follower: Follower,
        monitoring: Monitoring,
        registry: Registry,
    ) -> None:
        self._orders = orders
        self._store = store
        self._standings = standings
        self._follower = follower
        self._monitoring = monitoring
        self._registry = registry

    async def carry_out(self, request: MonitorRequest, peer: Peer) -> Reply:
        """Return the reply to a request. Raises what :meth:`Commands.carry_out` raises."""
        if request.action == MonitorAction.START and request.always:
            return await self._give(request, peer)
        if request.always:
            raise UsageError("--always belongs to npu-monitor start")
        if request.action == MonitorAction.STOP:
            if request.name:
                return await self._end(request, peer)
            return await self._stop(request, peer)
        if request.name:
            raise UsageError("--name belongs to start --always, and to stop")
        reply = await self._monitoring.carry_out(request, peer)
        if request.action == MonitorAction.UPDATE:
            return _with_text(reply, await self._update(request, peer))
        return reply

    def rows(self, peer: Peer) -> list[OrderRow]:
        """Return the orders that a peer may end."""
        return [
            self._row(order) for order in self._orders.all() if self._orders.may_end(peer, order)
        ]

    # --- start --always -------------------------------------------------------------------

    async def _give(self, request: MonitorRequest, peer: Peer) -> Reply:
        fields = check_order_fields(request.fields, request.selection)
        await self._monitoring.checked(dataclasses.replace(request, fields=fields), peer)
        name = request.name or self._orders.name_for(peer.owner, request.selection)
        order = StandingOrder(
            check_name(name),
            peer.owner,
            peer.uid,
            peer.gid,
            request.selection,
            fields,
            time.time_ns(),
        )
        former = self._orders.find(order.key)
        order = self._orders.give(order)
        try:
            rows = await self._follower.start_now(order, _limit_s(request))
        except MsmonError:  # as of a command: then nothing has been started, and nothing stands
            if former is None:
                self._orders.end(order)
            raise
        problem = await self._store.save(peer.owner, self._orders.of_owner(peer.owner))
        count = sum(row.ok for row in rows)
        text = (
            f"the order {name!r} stands for {selection_text(order.selection)}: {count} now, and "
            "those that register later"
        )
        if problem:
            text += f"; it is not remembered over a restart of the daemon: {problem}"
        return Reply(outcome_of(rows), text, rows=[*rows])

    # --- stop -----------------------------------------------------------------------------

    async def _stop(self, request: MonitorRequest, peer: Peer) -> Reply:
        await self._monitoring.checked(request, peer)
        chooser = Chooser(request.selection)
        stopped = [
            process
            for process in self._registry.live()
            if chooser.matches(process) and peer.may_command(process.peer)
        ]

        def of_commands(order: StandingOrder) -> list[bool]:
            return [
                self._standings.has_own_session(process)
                for process in stopped
                if self._orders.holds_for(order, process)
            ]

        effect = self._orders.stop(request.selection, peer, of_commands)
        text = _effect_text(
            effect, request.selection, await self._save([*effect.ended, *effect.restricted])
        )
        reply = await self._monitoring.carry_out(request, peer)
        if not reply.rows and (effect.ended or effect.restricted):
            reply = Reply(Outcome.OK)
        return _with_text(reply, text)

    async def _end(self, request: MonitorRequest, peer: Peer) -> Reply:
        """End an order by its name, and stop the sessions that come from it."""
        if request.selection != Selection():
            raise UsageError("--name ends an order for all its processes", "select none")
        await self._monitoring.checked(request, peer)
        order = self._named(request.name, peer)
        processes = self._standings.followers(order)
        self._orders.end(order)
        text = _effect_text(StopEffect([order]), request.selection, await self._save([order]))
        deadline_s = time.monotonic() + _limit_s(request)
        rows = await self._monitoring.ask(processes, Order(request, peer, {}, deadline_s))
        return _with_text(Reply(outcome_of(rows), rows=[*rows]), text)

    def _named(self, name: str, peer: Peer) -> StandingOrder:
        """Return the order of this name: the own one, else the only one that the peer may end."""
        found = [
            order
            for order in self._orders.all()
            if order.name == name and self._orders.may_end(peer, order)
        ]
        own = [order for order in found if order.owner == peer.owner]
        if not found:
            known = ", ".join(row.name for row in self.rows(peer)) or "none"
            raise CommandRefused(f"there is no order {name[:64]!r}", f"orders: {known}")
        if len(own or found) > 1:
            owners = ", ".join(order.owner for order in found)
            raise CommandRefused(
                f"several have an order {name!r}: {owners}", "stop it by its --rank or --job-id"
            )
        return (own or found)[0]

    # --- update ---------------------------------------------------------------------------

    async def _update(self, request: MonitorRequest, peer: Peer) -> str:
        """Change the orders that an update is about; return what it did to which."""
        changed, kept = [], []
        for order in self._orders.all():
            if not may_overlap(request.selection, order.selection):
                continue
            if not self._orders.may_end(peer, order):
                continue
            if covers(request.selection, order.selection):
                self._orders.change(order.updated(request.fields))
                changed.append(order)
            else:
                kept.append(order)
        problem = await self._save(changed)
        texts = [f"the order {order.name!r} is changed too" for order in changed]
        texts += [
            f"the order {order.name!r} keeps its options for processes that register later"
            for order in kept
        ]
        texts += [f"it comes back as it was, from {order.file}" for order in changed if order.file]
        return "; ".join([*texts, *([problem] if problem else [])])

    # --- all ------------------------------------------------------------------------------

    async def _save(self, changed: Iterable[StandingOrder]) -> str:
        """Write the files of the owners whose orders have changed; return what went wrong."""
        problems = []
        for owner in dict.fromkeys(order.owner for order in changed if not order.file):
            problem = await self._store.save(owner, self._orders.of_owner(owner))
            if problem:
                problems.append(f"a restart of the daemon takes that back: {problem}")
        return "; ".join(problems)

    def _row(self, order: StandingOrder) -> OrderRow:
        following = len(self._standings.followers(order))
        told = [
            self._standings.told(process)
            for process in self._registry.present()
            if self._orders.holds_for(order, process)
        ]
        waiting = sum(item.name == order.name and item.problem != "" for item in told)
        return OrderRow(
            order.name,
            order.owner,
            selection_text(order.selection),
            options_text(order.fields),
            order.given_ns,
            following,
            waiting,
            [_left_alone_text(item) for item in order.left_alone],
            order.file,
        )


def _limit_s(request: MonitorRequest) -> float:
    return min(max(request.timeout_s, 0.0), MAX_TIMEOUT_S)


def _left_alone_text(item: LeftAlone) -> str:
    text = selection_text(item.selection)
    return f"{text} of {item.owner}" if item.owner else text


def _effect_text(effect: StopEffect, selection: Selection, problem: str) -> str:
    """Return what a stop has done to the orders, as one sentence for each."""
    texts = []
    for order in effect.ended:
        until = f" until the daemon reads {order.file} again: [always] stands there"
        texts.append(f"the order {order.name!r} has ended{until if order.file else ''}")
    for order in effect.restricted:
        until = " until the daemon starts again" if order.file else ""
        texts.append(
            f"the order {order.name!r} leaves {selection_text(selection)} alone{until} and goes on "
            f"for others; `msmon npu-monitor stop --name {order.name}` ends it"
        )
    texts += [
        f"the order {order.name!r} takes over there; `msmon npu-monitor stop --name {order.name}` "
        "ends it"
        for order in effect.goes_on
    ]
    return "; ".join([*texts, *([problem] if problem else [])])


def _with_text(reply: Reply, text: str) -> Reply:
    return dataclasses.replace(reply, text="; ".join(filter(None, [reply.text, text])))
