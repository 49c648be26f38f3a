"""The processes that said hello, and whether they still live.

A process that says nothing is "silent" while it is there, and "lost" when it is not; one that said
goodbye is "ended". What is lost or has ended stays visible for a while, so that a question about
it has an answer. Times are on the monotonic clock, which nobody can set back. The owner is part
of what identifies a process. So a user can never register or continue the process of another user.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable

from msmon.bus.messages import Status
from msmon.bus.words import ProcessState
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.access.shares import Resource, Shares
from msmon.daemon.process import (
    Life,
    Process,
    as_starter,
    key_of,
    launch_of,
    starter_of,
)
from msmon.errors import CommandRefused
from msmon.sessions import ProcessInfo

MAX_PROCESSES = 10_000
"""Of all owners together; the share of one owner is smaller."""

JUDGED_PER_CHECK = 32
"""Silent processes that are looked at in one check, those first that were looked at longest ago.
One takes 0.4 ms of the loop, as it is read in /proc, and a user may stop hundreds of them."""

MAX_OF_ONE_PID = 4
"""Registrations from one process of a local user: itself, and what it speaks for as a carrier."""


class Registry:
    """All processes, by identity and by connection. The broker's loop writes its state.

    ``is_there`` tells of a process that says nothing whether it still runs. It is asked after
    ``lost_after_s``.
    """

    def __init__(
        self,
        lost_after_s: float,
        keep_gone_s: float,
        shares: Shares,
        is_there: Callable[[Process], bool] = lambda _: False,
    ) -> None:
        self._shares = shares
        self._is_there = is_there
        self._lost_after_s = lost_after_s
        self._keep_gone_s = keep_gone_s
        self._by_key: dict[str, Process] = {}
        self._agents_of_launch: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
        """Owner, host and launch → keys of the processes with an agent."""
        self._of_pid: defaultdict[tuple[str, int], dict[str, Process]] = defaultdict(dict)
        """Owner and pid of a local peer → what it has registered, by key."""
        self._started_by: defaultdict[tuple[str, str, str, str], dict[str, Process]] = defaultdict(
            dict
        )
        """Owner, host, container and ``started_by`` → what that process has started, by key."""
        self._by_route: dict[bytes, Process] = {}
        self._checked_s: float | None = None

    def all(self) -> list[Process]:
        """Return all processes, also those that are gone, by host, job and rank.

        A carrier is among them as long as it reaches a rank that has no agent. Example: a launch
        of 8 ranks with one carrier, where 7 ranks have an agent.
        """

        def order(process: Process) -> tuple[str, str, int, int]:
            info = process.info
            return info.host, info.job_id, info.rank, info.pid

        known = self._by_key.values()
        return sorted((item for item in known if self._is_needed(item)), key=order)

    def strangers(self, owner: str) -> float:
        """Return which part of all processes belongs to other owners, from 0 to 1."""
        if not self._by_key:
            return 0.0
        return 1.0 - self._shares.used(owner, Resource.PROCESSES) / len(self._by_key)

    def for_traces(self) -> list[Process]:
        """Return all processes as :meth:`all` does, without carriers of launches with an agent.

        A carrier starts the framework's own trace in all ranks that it reaches. In a rank with an
        agent two traces would run at once.
        """
        return [item for item in self.all() if not item.carrier or not self._agents_beside(item)]

    def trainers(self, process: Process) -> list[Process]:
        """Return the live processes that train in the place of this one; empty: it does itself.

        It has started them, they make steps, and it has made none since they registered. Commands
        that do not name its pid are for them alone. Example: a notebook calls ``msmon.init()`` and
        starts four processes with ``mp.spawn``. The notebook waits, and the four train.
        A process that is being monitored or traced does not make room: it must hear of the stop.
        """
        idle = process.status is not None and process.status.state == ProcessState.IDLE
        if process.carrier or not process.is_there or not idle:
            return []
        started = self._started_by.get(as_starter(process), {}).values()
        return [
            child
            for child in started
            if child.is_there and process.stepped_s < child.since_s < child.stepped_s
        ]

    def _is_needed(self, process: Process) -> bool:
        """Whether commands for a process must go to it: always, unless it is a carrier."""
        if not process.carrier:
            return True
        has_agent = key_of(process.peer, process.info, carrier=False) in self._by_key
        return not has_agent or self._agents_beside(process) < process.info.local_world_size

    def _agents_beside(self, carrier: Process) -> int:
        """Return how many ranks of a carrier's launch on its host have an agent, or had one.

        Only processes of the carrier's owner count. Otherwise another user could register agents
        of the same launch, and the carrier would get no more commands. The indexes make this as
        fast with a thousand agents as with one, because every status asks it for every carrier.
        """
        own_key = key_of(carrier.peer, carrier.info, carrier=False)
        beside = self._agents_of_launch.get(launch_of(carrier), set())
        return len(beside) + (own_key in self._by_key and own_key not in beside)

    def live(self) -> list[Process]:
        """Return the processes that can be commanded."""
        return [process for process in self.all() if process.is_there]

    def present(self) -> list[Process]:
        """Return all processes that live, carriers too, in no order: cheaper than :meth:`live`."""
        return [process for process in self._by_key.values() if process.is_there]

    def of_route(self, route: bytes) -> Process | None:
        """Return the process behind a connection."""
        return self._by_route.get(route)

    def register(
        self,
        info: ProcessInfo,
        peer: Peer,
        route: bytes,
        version: str,
        now_s: float,
        carrier: bool = False,
    ) -> Process:
        """Register a process whose ``info`` is confirmed. A newer hello replaces the older one.

        A connection speaks for one process. If it says hello for another one, the former process
        is lost. The hello of an older connection is refused while the process lives on a newer one:
        it waited on a busy daemon until its sender had given it up and had connected again. If it
        counted, all messages on the newer connection would be refused.
        Raises CommandRefused for that, when other credentials hold this identity, and when one
        local process registers too many; and ShareUsedUp when the owner has too many processes.
        """
        key = key_of(peer, info, carrier)
        known = self._by_key.get(key)
        if known is None:
            new = Process(info, peer, route, version, now_s, carrier=carrier, since_s=now_s)
            known = self._add(new)
        elif known.peer.credential != peer.credential:
            raise CommandRefused(f"{known.label} is registered by {known.peer.name}")
        elif known.is_there and _is_older(route, known.route):
            raise CommandRefused(f"{known.label} has said hello on a newer connection")
        former = self._by_route.get(route)
        if former is not None and former is not known:
            former.life, former.gone_s = Life.LOST, now_s
        self._forget_route(known)
        self._leave_indexes(known)
        known.info, known.peer, known.route, known.version = info, peer, route, version
        self._enter_indexes(known)
        known.last_seen_s, known.life = now_s, Life.LIVE
        self._by_route[route] = known
        return known

    def _add(self, process: Process) -> Process:
        """Add a process. If its owner has too many, forget the one that has been gone longest."""
        owner = process.peer.owner
        self._make_room_of_pid(process.peer)
        if len(self._by_key) >= MAX_PROCESSES:
            raise CommandRefused("too many processes are registered with this daemon")
        if not self._shares.try_take(owner, Resource.PROCESSES):
            gone = [
                item
                for item in self._by_key.values()
                if not item.is_there and item.peer.owner == owner
            ]
            if gone:
                self._remove(min(gone, key=lambda item: item.gone_s))
            self._shares.take(owner, Resource.PROCESSES)
        self._by_key[process.key] = process
        self._enter_indexes(process)
        return process

    def _make_room_of_pid(self, peer: Peer) -> None:
        """Bound what one local process of a user registers. Raises CommandRefused.

        The kernel vouches for the pid. What is gone makes room; it may be an earlier process with
        the same pid. A pid that the daemon can't see is 0, and stands for many.
        """
        if peer.role is Role.OPERATOR or peer.pid <= 0:
            return
        registered = self._of_pid.get((peer.owner, peer.pid), {})
        if len(registered) < MAX_OF_ONE_PID:
            return
        gone = [item for item in registered.values() if not item.is_there]
        if not gone:
            raise CommandRefused(f"process {peer.pid} has registered {MAX_OF_ONE_PID} already")
        self._remove(min(gone, key=lambda item: item.gone_s))

    def _enter_indexes(self, process: Process) -> None:
        if process.peer.pid > 0:
            self._of_pid[process.peer.owner, process.peer.pid][process.key] = process
        if not process.carrier and process.info.launch:
            self._agents_of_launch[launch_of(process)].add(process.key)
        if not process.carrier and process.info.started_by:
            self._started_by[starter_of(process)][process.key] = process

    def _leave_indexes(self, process: Process) -> None:
        """Undo ``_enter_indexes``. Call before info or peer of a process are changed."""
        pid, launch = (process.peer.owner, process.peer.pid), launch_of(process)
        self._of_pid[pid].pop(process.key, None)
        if not self._of_pid[pid]:
            del self._of_pid[pid]
        self._agents_of_launch[launch].discard(process.key)
        if not self._agents_of_launch[launch]:
            del self._agents_of_launch[launch]
        starter = starter_of(process)
        self._started_by[starter].pop(process.key, None)
        if not self._started_by[starter]:
            del self._started_by[starter]

    def _remove(self, process: Process) -> None:
        """Forget a process, and give its place back."""
        owner = process.peer.owner
        del self._by_key[process.key]
        self._leave_indexes(process)
        self._forget_route(process)
        self._shares.give_back(owner, Resource.PROCESSES)
        self._shares.give_back(owner, Resource.REMEMBERED_BYTES, process.status_bytes)

    def keep_status(self, process: Process, status: Status, size_bytes: int) -> None:
        """Keep the last status of a process. Raises ShareUsedUp if its owner's fill their share."""
        owner, grown_bytes = process.peer.owner, size_bytes - process.status_bytes
        if grown_bytes > 0:
            self._shares.take(owner, Resource.REMEMBERED_BYTES, grown_bytes)
        elif grown_bytes < 0:
            self._shares.give_back(owner, Resource.REMEMBERED_BYTES, -grown_bytes)
        process.status, process.status_bytes = status, size_bytes
        if status.step_age_s >= 0:
            process.stepped_s = process.last_seen_s - status.step_age_s

    def heard(self, process: Process, now_s: float) -> None:
        """Note a sign of life. A silent or lost process that speaks again is live again."""
        process.last_seen_s = now_s
        if process.life in (Life.SILENT, Life.LOST):
            process.life = Life.LIVE

    def goodbye(self, process: Process, now_s: float) -> None:
        """Note that a process ended its connection on purpose."""
        process.life, process.gone_s = Life.ENDED, now_s
        self._forget_route(process)
        if process.carrier and process.key in self._by_key:
            self._remove(process)

    def expire(self, now_s: float) -> list[Process]:
        """Return the processes that became silent or lost since the last call.

        Forgets those that are long gone.
        """
        stall_s = 0.0 if self._checked_s is None else now_s - self._checked_s
        self._checked_s = now_s
        if stall_s > self._lost_after_s / 2:  # The daemon itself was stopped, not the agents.
            for process in self._by_key.values():
                process.last_seen_s += stall_s
        for process in list(self._by_key.values()):
            if process.is_there:
                continue
            if process.carrier or now_s - process.gone_s > self._keep_gone_s:
                self._remove(process)
        changed = []
        for process in self._to_judge(now_s):
            before = process.life
            self._judge(process, now_s)
            changed += [process] if process.life is not before else []
        return changed

    def _to_judge(self, now_s: float) -> list[Process]:
        silent = (
            process
            for process in self._by_key.values()
            if process.is_there and now_s - process.last_seen_s > self._lost_after_s
        )
        return heapq.nsmallest(JUDGED_PER_CHECK, silent, key=lambda process: process.judged_s)

    def _judge(self, process: Process, now_s: float) -> None:
        """Find out what has become of a process that says nothing."""
        process.judged_s = now_s
        if not process.carrier and self._is_there(process):
            process.life = Life.SILENT
        else:
            process.life, process.gone_s = Life.LOST, now_s

    def _forget_route(self, process: Process) -> None:
        """Forget the connection of a process, unless it is another's by now."""
        if self._by_route.get(process.route) is process:
            del self._by_route[process.route]


def _is_older(route: bytes, other: bytes) -> bool:
    """Whether libzmq made a connection's routing id before another one.

    Its ids are a zero byte and a counter of 32 bits that begins anywhere and wraps around. Of
    other ids nothing is known.
    """
    if not all(len(one) == 5 and one[0] == 0 for one in (route, other)):
        return False
    ahead = int.from_bytes(other[1:], "big") - int.from_bytes(route[1:], "big")
    return 0 < ahead % (1 << 32) < 1 << 31
