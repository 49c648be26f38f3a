"""Who uses MSPTI's one subscription of this process, or will need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msmon.errors import CommandRefused


class Holder(Protocol):
    """Something that records: whether it does now, and what others are told of it."""

    purpose: str

    @property
    def active(self) -> bool: ...


_SUBSCRIPTION = "subscription"

_holders: dict[str, Holder] = {}
"""The one that records now, under the key "subscription", or nothing. A dictionary because its
``setdefault`` is atomic: recorders on several threads may try at the same moment."""


def subscription_holder() -> str:
    """Return what records in this process at present; empty when nothing does."""
    holder = _holders.get(_SUBSCRIPTION)
    return holder.purpose if holder is not None else ""


def take_subscription(candidate: Holder) -> None:
    """Make the candidate the holder.

    Raises CommandRefused that names the one who records already, be it the candidate itself.
    """
    holder = _holders.setdefault(_SUBSCRIPTION, candidate)
    if holder is not candidate or candidate.active:
        raise CommandRefused(
            f"{holder.purpose} is already recording in this process", f"stop {holder.purpose} first"
        )


def give_subscription_back() -> None:
    """Let another one take the subscription; only the holder calls this."""
    _holders.pop(_SUBSCRIPTION, None)


_traces: list[Callable[[], str]] = []
"""Tells of the trace that waits or runs in this process; empty where there is no agent."""


def announce_traces(holder: Callable[[], str] | None) -> None:
    """Have :func:`trace_holder` ask ``holder`` from now on; None: nobody.

    The agent calls this. The Monitor API must not import the agent: it would load ZeroMQ.
    """
    _traces[:] = [holder] if holder is not None else []


def trace_holder() -> str:
    """Return the trace that waits or runs in this process; empty when none does.

    A trace's profiler needs the subscription, so nothing may record beside it.
    """
    return _traces[0]() if _traces else ""
