"""What each owner of connections and data may use of the daemon: one share per resource.

One daemon serves every user of a node. Whatever a peer can make grow or can use up is counted
here against its owner. When the owner's share is used up, more is refused. Example: a user who
opens connections in a loop is refused at the 257th, and no other user notices.

An owner is the text ``Peer.owner``: "uid 1000" for a local user, "key NAME" for a TCP key.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from msmon.errors import CommandRefused

_FORGET_IDLE_AT = 4096
"""Number of accounts above which those that hold nothing are forgotten, to bound the memory."""


@dataclass(frozen=True)
class Limit:
    """How much of a resource one owner may hold, or use per second.

    ``refill_per_s`` is 0 for what is held and given back, such as connections. Otherwise
    ``amount`` may be used at once and comes back at that rate, such as loop time.
    ``operator_factor`` multiplies both for operators, who are trusted.
    """

    amount: float
    refill_per_s: float
    operator_factor: float
    what: str
    """The resource as a refusal names it."""


class Resource(enum.Enum):
    """What is counted per owner. Bytes are bytes in memory or written, times are seconds."""

    CONNECTIONS = "connections"
    PROCESSES = "processes"
    SESSIONS = "sessions"
    REQUESTS = "requests"
    QUEUED_BYTES = "queued bytes"
    REMEMBERED_BYTES = "remembered bytes"
    OPEN_WINDOW_BYTES = "bytes of open windows"
    RECENT_BYTES = "bytes of recent windows"
    UNREAD_BYTES = "bytes of answers not read"
    DISK_BYTES = "disk bytes"
    LOOP_S = "loop seconds"
    AUDIT_LINES = "audit lines"
    REFUSED_AUDIT_LINES = "audit lines on refusals"


KEY_FACTOR = 4.0
"""Multiplies what a key may hold, because a key may stand for several nodes. Rates are not
multiplied, because the loop and the disk that are shared do not grow with the nodes."""
_MIB = float(1 << 20)

LIMITS: dict[Resource, Limit] = {
    Resource.CONNECTIONS: Limit(256, 0, 64, "open connections"),
    Resource.PROCESSES: Limit(512, 0, 20, "registered processes"),
    Resource.SESSIONS: Limit(1024, 0, 16, "sessions"),
    Resource.REQUESTS: Limit(32, 0, 8, "requests at the same time"),
    Resource.QUEUED_BYTES: Limit(128 * _MIB, 0, 4, "bytes waiting for outputs"),
    Resource.REMEMBERED_BYTES: Limit(8 * _MIB, 0, 16, "bytes remembered"),
    Resource.OPEN_WINDOW_BYTES: Limit(32 * _MIB, 0, 4, "bytes of open windows"),
    Resource.RECENT_BYTES: Limit(32 * _MIB, 0, 2, "bytes of recent windows"),
    Resource.UNREAD_BYTES: Limit(16 * _MIB, 0, 4, "bytes of answers that it has not read"),
    Resource.DISK_BYTES: Limit(2048 * _MIB, 128 * _MIB, 8, "bytes written per second"),
    Resource.LOOP_S: Limit(1.0, 0.5, 8, "work of the daemon's loop"),
    Resource.AUDIT_LINES: Limit(200, 0.2, 100, "lines of the audit log"),
    Resource.REFUSED_AUDIT_LINES: Limit(50, 0.2, 4, "lines of the audit log on refusals"),
}
"""A node with 16 ranks of one user uses about 20 connections, 20 processes and 16 sessions."""


class ShareUsedUp(CommandRefused):
    """An owner asks for more than its share."""

    def __init__(self, owner: str, resource: Resource, limit: float) -> None:
        super().__init__(
            f"{owner} has used up its share of {LIMITS[resource].what} ({limit:g})",
            "wait, or end what is not needed any more",
        )
        self.resource = resource


@dataclass
class _Account:
    """What one owner holds of one resource.

    For a rate ``used`` is a debt: each use adds to it, and time takes it down again.

    Any thread may write it, under the lock of ``Shares``.
    """

    used: float = 0.0
    at_s: float = 0.0


class Shares:
    """The shares of all owners.

    Every method may be called from any thread, and changes state under one lock. The broker's
    loop counts most resources. The threads of outputs count QUEUED_BYTES and DISK_BYTES.
    ``is_operator`` says whether the wider limits hold for an owner. It must not block. ``amounts``
    are in the place of those of ``LIMITS`` where the daemon's settings say so.
    """

    def __init__(
        self,
        is_operator: Callable[[str], bool] = lambda owner: False,
        clock_s: Callable[[], float] = time.monotonic,
        amounts: Mapping[Resource, float] | None = None,
    ) -> None:
        self._is_operator = is_operator
        self._limits = {
            resource: replace(limit, amount=(amounts or {}).get(resource, limit.amount))
            for resource, limit in LIMITS.items()
        }
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._accounts: dict[tuple[str, Resource], _Account] = {}

    def limit(self, owner: str, resource: Resource) -> float:
        """Return how much this owner may hold, or use at once."""
        limit = self._limits[resource]
        return limit.amount * self._factor(owner, limit)

    def used(self, owner: str, resource: Resource) -> float:
        """Return how much this owner holds, or has used and not yet regained."""
        with self._lock:
            account = self._accounts.get((owner, resource))
            return 0.0 if account is None else self._settled(owner, resource, account)

    def take(self, owner: str, resource: Resource, amount: float = 1) -> None:
        """Count ``amount`` against the owner. Raises ShareUsedUp, and then counts nothing."""
        if not self.try_take(owner, resource, amount):
            raise ShareUsedUp(owner, resource, self.limit(owner, resource))

    def try_take(self, owner: str, resource: Resource, amount: float = 1) -> bool:
        """Count ``amount`` against the owner, or return False if that would be too much."""
        with self._lock:
            account = self._account(owner, resource)
            used = self._settled(owner, resource, account)
            if used + amount > self.limit(owner, resource):
                return False
            account.used = used + amount
            return True

    def charge(self, owner: str, resource: Resource, amount: float) -> bool:
        """Count what has been used already. False: that was more than the share.

        For costs that are known only afterwards, such as the time that a message took. A debt
        is at most one share, so that it is paid off in bounded time.
        """
        with self._lock:
            account = self._account(owner, resource)
            limit = self.limit(owner, resource)
            account.used = min(self._settled(owner, resource, account) + amount, 2 * limit)
            return account.used <= limit

    def give_back(self, owner: str, resource: Resource, amount: float = 1) -> None:
        """Return what was taken."""
        with self._lock:
            account = self._accounts.get((owner, resource))
            if account is None:
                return
            account.used = max(0.0, account.used - amount)
            if not account.used:
                del self._accounts[owner, resource]

    def _account(self, owner: str, resource: Resource) -> _Account:
        """Return the account, or make it. The caller holds the lock."""
        account = self._accounts.get((owner, resource))
        if account is None:
            if len(self._accounts) >= _FORGET_IDLE_AT:
                self._forget_idle()
            account = self._accounts[owner, resource] = _Account(at_s=self._clock_s())
        return account

    def _settled(self, owner: str, resource: Resource, account: _Account) -> float:
        """Subtract what time has brought back and return the rest. The caller holds the lock."""
        limit = self._limits[resource]
        if limit.refill_per_s:
            now_s = self._clock_s()
            regained = (now_s - account.at_s) * limit.refill_per_s * self._factor(owner, limit)
            account.used, account.at_s = max(0.0, account.used - regained), now_s
        return account.used

    def _factor(self, owner: str, limit: Limit) -> float:
        """Return how many times the limit of a local user this owner has."""
        if self._is_operator(owner):
            return limit.operator_factor
        held = not limit.refill_per_s
        return KEY_FACTOR if held and owner.startswith("key ") else 1.0

    def _forget_idle(self) -> None:
        for (owner, resource), account in list(self._accounts.items()):
            if not self._settled(owner, resource, account):
                del self._accounts[owner, resource]
