"""All standing orders: which one holds for a process, and what a command does to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from msmon.bus.messages import Selection
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.process import Process
from msmon.daemon.standing.order import (
    DEFAULT_NAME,
    LeftAlone,
    StandingOrder,
    covers,
    may_overlap,
    selection_text,
)
from msmon.errors import CommandRefused

MAX_PER_OWNER = 16
MAX_LEFT_ALONE_PER_OWNER = 16
"""Exceptions that one owner can have made from one order."""


class OrderFromFile:
    """The order of the daemon.toml in force, or None. Written on the broker's loop."""

    def __init__(self, order: StandingOrder | None = None) -> None:
        self.order = order
        self.changes = 0

    def replace(self, order: StandingOrder | None) -> None:
        """Take over what a file that was read again says."""
        self.order = order
        self.changes += 1


@dataclass
class StopEffect:
    """What a stop has done to the orders."""

    ended: list[StandingOrder] = field(default_factory=list)
    restricted: list[StandingOrder] = field(default_factory=list)
    """Those that leave the stopped processes alone from now on, and go on for the others."""
    goes_on: list[StandingOrder] = field(default_factory=list)
    """Those that hold for stopped processes, and take over there."""


class Orders:
    """The orders in force. Every method runs on the broker's loop, and only there.

    ``is_operator`` says whether an owner may command every process, ``rights_changes`` how often
    the answer has changed. Orders of operators hold for all processes, others for those of their
    owner only. At most one order holds for a process: of several the one that was given first, and
    that of daemon.toml last.
    """

    def __init__(
        self,
        orders: Iterable[StandingOrder],
        from_file: OrderFromFile,
        is_operator: Callable[[str], bool],
        rights_changes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._orders = {order.key: order for order in orders}
        self._from_file = from_file
        self._file_changes = -1
        self._is_operator = is_operator
        self._rights_changes = rights_changes
        self._changes = 0

    @property
    def version(self) -> tuple[int, int]:
        """Another one after each change, so that what was found out before is known as old."""
        self._look_at_file()
        return self._changes, self._rights_changes()

    def all(self) -> list[StandingOrder]:
        """Return all orders, in the order in which they hold."""
        self._look_at_file()
        return sorted(self._orders.values(), key=lambda order: (order.file, order.given_ns))

    def of_owner(self, owner: str) -> list[StandingOrder]:
        """Return the orders that an owner's commands gave."""
        return [order for order in self.all() if order.owner == owner and not order.file]

    def find(self, key: tuple[str, str]) -> StandingOrder | None:
        """Return the order with this key, as it is now."""
        return self._orders.get(key)

    def holds_for(self, order: StandingOrder, process: Process) -> bool:
        """Whether an order is for a process, and its owner may command it."""
        return self._reaches(order, process.peer.owner) and order.selects(process)

    def of_process(self, process: Process) -> StandingOrder | None:
        """Return the order that holds for a process."""
        return next((order for order in self.all() if self.holds_for(order, process)), None)

    def peer_of(self, order: StandingOrder) -> Peer:
        """Return in whose name an order commands now."""
        role = Role.OPERATOR if self._is_operator(order.owner) else Role.USER
        return Peer(role, order.owner, order.owner, order.uid, gid=order.gid)

    def may_end(self, peer: Peer, order: StandingOrder) -> bool:
        """Whether an order is a peer's to change: its own, or any for an operator."""
        return peer.role is Role.OPERATOR or peer.owner == order.owner

    # --- changes --------------------------------------------------------------------------

    def name_for(self, owner: str, selection: Selection) -> str:
        """Return a name for an order without one: that of the same order, else a free one."""
        own = {order.name: order for order in self.of_owner(owner)}
        for name, order in own.items():
            if order.selection == selection:
                return name
        names = [DEFAULT_NAME, *(f"{DEFAULT_NAME}-{number}" for number in range(2, 99))]
        return next(name for name in names if name not in own)

    def give(self, order: StandingOrder) -> StandingOrder:
        """Let an order stand, and return it. The same order again lifts its exceptions.

        Raises CommandRefused where another order may meet it in a process, and where its owner has
        too many. An operator's order gives way to those that users gave before for their own
        processes, and is not refused for them: nobody can keep operators from giving orders.
        """
        former = self._orders.get(order.key)
        if former is not None:
            if (former.selection, former.fields) != (order.selection, order.fields):
                raise CommandRefused(
                    f"the order {order.name!r} stands already, with other options",
                    f"end it with `msmon npu-monitor stop --name {order.name}`, or give another "
                    "--name",
                )
            return self._put(replace(order, given_ns=former.given_ns))
        if len(self.of_owner(order.owner)) >= MAX_PER_OWNER:
            raise CommandRefused(
                f"{order.owner} has given {MAX_PER_OWNER} standing orders already", "end one"
            )
        for other in self.all():
            if self._would_meet(order, other):
                raise CommandRefused(
                    f"the order {other.name!r} of {other.owner} holds for such processes already: "
                    f"{selection_text(other.selection)}",
                    f"end it with `msmon npu-monitor stop --name {other.name}`, or select other "
                    "ranks or jobs",
                )
        return self._put(order)

    def end(self, order: StandingOrder) -> None:
        """End an order; that of a daemon.toml until the daemon reads the file again."""
        if self._orders.pop(order.key, None) is not None:
            self._changes += 1

    def change(self, order: StandingOrder) -> None:
        """Put an order in the place of that with its key."""
        self._put(order)

    def stop(
        self,
        selection: Selection,
        peer: Peer,
        stopped: Callable[[StandingOrder], list[bool]],
    ) -> StopEffect:
        """Note that a peer has monitoring stopped in selected processes.

        An order that is for no others ends. Another one leaves the selected processes alone from
        now on, unless what is stopped there are sessions of commands. ``stopped(order)`` tells of
        each process that is there, that the order holds for and that is stopped: whether its
        session is one of a command.
        """
        effect = StopEffect()
        for order in self.all():
            if not may_overlap(selection, order.selection):
                continue
            mine = self.may_end(peer, order)
            if not mine and not self._reaches(order, peer.owner):
                continue
            concerned = stopped(order)
            if mine and covers(selection, order.selection):
                self.end(order)
                effect.ended.append(order)
            elif concerned and all(concerned):
                effect.goes_on.append(order)
            elif concerned or not selection.pids:
                exception = LeftAlone(selection, "" if mine else peer.owner)
                self._put(_restricted(order, exception))
                effect.restricted.append(order)
        return effect

    def _put(self, order: StandingOrder) -> StandingOrder:
        self._orders[order.key] = order
        self._changes += 1
        return order

    def _reaches(self, order: StandingOrder, owner: str) -> bool:
        """Whether the giver of an order may command the processes of an owner."""
        return self._is_operator(order.owner) or (order.uid >= 0 and order.owner == owner)

    def _would_meet(self, order: StandingOrder, former: StandingOrder) -> bool:
        if not may_overlap(order.selection, former.selection):
            return False
        wide, former_wide = self._is_operator(order.owner), self._is_operator(former.owner)
        if not former_wide:
            return not wide and order.owner == former.owner
        scope = "" if wide else order.owner
        return not any(
            item.owner in ("", scope) and covers(item.selection, order.selection)
            for item in former.left_alone
        )

    def _look_at_file(self) -> None:
        if self._file_changes == self._from_file.changes:
            return
        self._file_changes = self._from_file.changes
        self._orders = {key: order for key, order in self._orders.items() if not order.file}
        if self._from_file.order is not None:
            self._orders[self._from_file.order.key] = self._from_file.order
        self._changes += 1


def _restricted(order: StandingOrder, exception: LeftAlone) -> StandingOrder:
    made = sum(item.owner == exception.owner for item in order.left_alone)
    if made >= MAX_LEFT_ALONE_PER_OWNER:
        raise CommandRefused(
            f"the order {order.name!r} leaves {made} selections alone already",
            "end the order and give it again for those processes that it shall hold for",
        )
    return order.excepting(exception)
