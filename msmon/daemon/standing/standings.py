"""What each process does about the order that holds for it, and why it does not follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from msmon.bus.messages import Status
from msmon.bus.words import ProcessState, TraceState
from msmon.daemon.process import Life, Process
from msmon.daemon.registry import Registry
from msmon.daemon.standing.order import StandingOrder
from msmon.daemon.standing.orders import Orders

OWN_SESSION = "left alone: a command of its own monitors it; the order takes over when that ends"
FOR_A_TRACE = "the order waits for the trace in this process"
CARRIER = "an order can't hold for ranks without an agent: start monitoring there by hand"


@dataclass
class Following:
    """How a process follows. ``Follower`` writes it, and ``Standings`` its first part."""

    agent_id: str
    """Which agent it was tried with; another one is another program in the process."""
    order: StandingOrder | None = None
    looked_up: object = None
    """For what orders and what process ``order`` was found."""
    busy: bool = False
    """A start is under way."""
    tried_s: float = -math.inf
    stray_s: float = -math.inf
    """Since when, or since which attempt to stop it, its session is of an order that holds no more;
    minus infinity: it is not."""
    session_id: str = ""
    """The session that the last start began, as the daemon calls it."""
    problem: str = ""


@dataclass(frozen=True)
class Told:
    """What a status tells of a process: the order that its session comes from, or that waits."""

    name: str = ""
    problem: str = ""
    """Why it does not follow; empty if it does."""


class Standings:
    """Which order holds for each process, and how it stands to it. Runs on the broker's loop."""

    def __init__(self, orders: Orders, registry: Registry) -> None:
        self._orders = orders
        self._registry = registry
        self._known: dict[str, Following] = {}

    def order_of(self, process: Process) -> StandingOrder | None:
        """Return the order that holds for a process."""
        following = self.following(process)
        looked_up = (self._orders.version, process.info)
        if following.looked_up != looked_up:
            following.looked_up = looked_up
            order = self._orders.of_process(process)
            if order is None or following.order is None or order.key != following.order.key:
                following.tried_s, following.problem = -math.inf, ""
            following.order = order
        return following.order

    def has_own_session(self, process: Process) -> bool:
        """Whether a session runs in a process that is none of the order that holds for it."""
        status, order = process.status, self.order_of(process)
        if status is None or status.settings is None:
            return False
        return order is None or self._session_order(process, status) != order.name

    def followers(self, order: StandingOrder) -> list[Process]:
        """Return the live processes in which a session of an order runs."""
        return [
            process
            for process in self._registry.present()
            if (status := process.status) is not None
            and status.settings is not None
            and self._session_order(process, status) == order.name
            and self._orders.holds_for(order, process)
        ]

    def told(self, process: Process) -> Told:
        """Return what a status tells of a process."""
        status = process.status
        if not process.is_there:
            return Told()
        if status is not None and status.settings is not None:
            running = self._session_order(process, status)
            if running:
                return Told(running)
        order = self.order_of(process)
        if order is None or self.only_waits(process):
            return Told()
        reason = self.reason_to_wait(process) or self.following(process).problem
        return Told(order.name, reason)

    def following(self, process: Process) -> Following:
        following = self._known.get(process.key)
        if following is None or following.agent_id != process.agent_id:
            following = self._known[process.key] = Following(process.agent_id)
        return following

    def _session_order(self, process: Process, status: Status) -> str:
        """Return the name of the order that the running session comes from; empty: of none.

        An agent of an older version doesn't say it. Its session is that of the order if the order
        began it, or if its settings are those of the order: then the daemon was restarted.
        """
        assert status.settings is not None
        if status.settings.order:
            return status.settings.order
        if process.names_orders:
            return ""
        order = self.order_of(process)
        if order is None:
            return ""
        began = self.following(process).session_id
        if process.session_id == began or status.settings.with_kinds() == order.settings:
            return order.name
        return ""

    def only_waits(self, process: Process) -> bool:
        return bool(self._registry.trainers(process))

    def reason_to_wait(self, process: Process) -> str:
        """Return why monitoring must not be started in a process now; empty if it may."""
        status = process.status or Status(ProcessState.UNKNOWN)
        if process.carrier:
            return CARRIER
        if status.settings is not None:
            return OWN_SESSION if self.has_own_session(process) else "it follows already"
        if status.trace is not None and status.trace.state in (
            TraceState.READY,
            TraceState.RUNNING,
        ):
            return FOR_A_TRACE
        if process.life is Life.SILENT:
            return "it says nothing at the moment"
        if status.state not in (ProcessState.IDLE, ProcessState.FAILED):
            return f"its state is {status.state}"
        return ""

    def keep_only(self, present: Sequence[Process]) -> None:
        """Forget what is known of all other processes."""
        if len(self._known) <= len(present):
            return
        keys = {process.key for process in present}
        self._known = {key: item for key, item in self._known.items() if key in keys}
