"""What all commands share: select, ask many processes at once, one reply with a row for each.

A kind of command derives from :class:`Commands` and adds what it checks, whom it asks in which
order, and what its rows say.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Union

from msmon.bus.messages import MonitorRequest, Reply, Selection, TraceRequest
from msmon.bus.rows import AnswerRow, MissingRow, outcome_of
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.commands.commander import Commander
from msmon.daemon.process import Process
from msmon.daemon.registry import Registry
from msmon.daemon.rows import foreign_row
from msmon.daemon.selection import MayProbe, Selected, select

MAX_TIMEOUT_S = 600.0

Request = TypeVar("Request", bound=Union[MonitorRequest, TraceRequest])


@dataclass(frozen=True)
class Order(Generic[Request]):
    """A checked request on its way to processes."""

    request: Request
    peer: Peer
    """Who asks."""
    fields: dict[str, Any]
    """What the processes are told."""
    deadline_s: float
    """When the reply must go out, on the monotonic clock."""
    holds: Callable[[Process], bool] = lambda _: True
    """Asked right before a process is told."""


class Commands(ABC, Generic[Request]):
    """Carries out the requests of one kind. Every method runs on the broker's loop."""

    def __init__(self, registry: Registry, commander: Commander, host: str) -> None:
        self.registry = registry
        self.commander = commander
        self._host = host

    async def carry_out(self, request: Request, peer: Peer) -> Reply:
        """Return the reply to a request.

        Raises UsageError, SinkError and CommandRefused; then nobody has been asked.
        """
        fields = await self.checked(request, peer)
        deadline_s = time.monotonic() + min(max(request.timeout_s, 0.0), MAX_TIMEOUT_S)
        selected = self._selected(request.selection, peer)
        missing: list[AnswerRow | MissingRow] = [*self.vanished(request, peer), *selected.missing]
        if not selected.processes:
            return Reply(selected.outcome, selected.text, selected.next_step, [*missing])
        chosen, note = self.chosen(selected.processes, request)
        allowed = [process for process in chosen if peer.may_command(process.peer)]
        answers = await self.ask(allowed, Order(request, peer, fields, deadline_s))
        by_key = {process.key: row for process, row in zip(allowed, answers)}
        rows = [by_key.get(process.key) or foreign_row(process, peer) for process in chosen]
        return Reply(outcome_of([*rows, *missing]), note, rows=[*rows, *missing])

    @abstractmethod
    async def checked(self, request: Request, peer: Peer) -> dict[str, Any]:
        """Return the fields for the processes. Raises UsageError for what is wrong in them."""

    @abstractmethod
    async def ask(self, processes: Sequence[Process], order: Order[Request]) -> list[AnswerRow]:
        """Have the processes carry out the order; return a row for each, in their order."""

    def vanished(self, request: Request, peer: Peer) -> list[AnswerRow]:
        """Return rows on processes that are no longer there and that the request is about."""
        return []

    def candidates(self) -> list[Process]:
        """Return the processes that a command can be for."""
        return self.registry.all()

    def chosen(self, matched: list[Process], request: Request) -> tuple[list[Process], str]:
        """Return the processes to ask, of those that match, and a note on those left out."""
        return matched, ""

    def _selected(self, selection: Selection, peer: Peer) -> Selected:
        """A local user who names no process means the own ones.

        A process that only waits for those that train is meant only where its pid is named.
        """
        known = self.candidates()
        if not selection.pids:
            known = [process for process in known if not self.registry.trainers(process)]
        if peer.role is Role.USER and selection == Selection():
            known = [process for process in known if peer.may_command(process.peer)]
        return select(selection, known, self._host, time.monotonic(), probing(peer))


def probing(peer: Peer) -> MayProbe:
    """Return whether a peer may learn that a pid exists: operators, and owners of the process.

    A system may hide processes from other users; the daemon must not tell on its behalf.
    """

    def may_probe(pid: int) -> bool:
        if peer.role is Role.OPERATOR:
            return True
        try:
            return os.stat(f"/proc/{pid}").st_uid == peer.uid
        except OSError:
            return False

    return may_probe
