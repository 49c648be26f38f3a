"""One MSPTI subscription: from the kinds to collect to batches of decoded records.

npu-monitor sessions and the Monitor API share this class. It makes MSPTI calls on
the caller's thread and holds no lock while it does. Order of a stop (loses least,
mspti_activity.h leaves it open): disable every kind, flush, unsubscribe, flush.

A record belongs to a recording if it ended at or after the recording's start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msmon.errors import CommandRefused, LibraryUnavailable, MsptiError
from msmon.ffi.decode import decode
from msmon.ffi.walk import split
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.layout import LAYOUTS
from msmon.sessions import Drops, DropStage

if TYPE_CHECKING:
    from msmon.ffi.arena import BufferArena, CompletedBuffer
    from msmon.ffi.mspti import Mspti

T = TypeVar("T")

DISABLED_DOMAINS = ("communication",)
"""Marker domains switched off while recording, as msMonitor does: one long marker per
collective, which the Communication kind reports better."""

EARLY_RECORDS_S = 60.0
"""How long after a start records may still arrive that ended before it. Later they are not
looked for, so that a clock set back in the middle of a recording costs nothing."""

EARLIEST_WALL_CLOCK_NS = 10**18
"""Smaller times (before 2001) are raw counters of an uncalibrated device, or no times at all."""

CALL_ERRORS = (MsptiError, LibraryUnavailable)
"""What a call can raise: a result other than success, or a function that this library lacks."""

_HOLDER: dict[str, Recorder] = {}
"""The recorder that holds this process's one subscription, under the key "subscription"."""


def subscription_holder() -> str:
    """Return what records in this process at present; empty when nothing does."""
    holder = _HOLDER.get("subscription")
    return holder.purpose if holder is not None else ""


def _no_trace() -> str:
    return ""


trace_holder: Callable[[], str] = _no_trace
"""Returns the trace that waits or runs in this process, if any. The agent puts its own here:
a trace's profiler needs the subscription, so nothing may record beside it."""


class MsptiCall(NamedTuple):
    """An MSPTI call that has not returned yet."""

    text: str
    since_monotonic_s: float


class Recorder:
    """Records activity of this process; at most one recorder is active at a time.

    ``call_in_progress`` may be read from any thread. ``early_records`` and
    ``late_records`` count what was left out because it belongs to an earlier recording.
    """

    def __init__(self, mspti: Mspti, arena: BufferArena, purpose: str = "npu-monitor") -> None:
        self.purpose = purpose
        self.call_in_progress: MsptiCall | None = None
        self.problems: list[str] = []
        self.early_records = 0
        self.late_records = 0
        self.buffers_read = 0
        self._mspti = mspti
        self._arena = arena
        self._subscription: int | None = None
        self._enabled: set[ActivityKind] = set()
        self._enabled_ever: set[ActivityKind] = set()
        self._disabled_domains: tuple[str, ...] = ()
        self._start_ns = 0
        self._early_until_s = 0.0
        self._overflow_bytes_at_start = 0
        self._undecoded_bytes = 0
        self._first_order = 0

    @property
    def active(self) -> bool:
        """Whether this recorder holds the subscription."""
        return self._subscription is not None

    @property
    def enabled_kinds(self) -> frozenset[ActivityKind]:
        """The kinds that MSPTI is recording for us now."""
        return frozenset(self._enabled)

    @property
    def start_ns(self) -> int:
        """Wall clock of the start: records that ended before it are left out."""
        return self._start_ns

    @property
    def slots_out(self) -> int:
        """Buffers that MSPTI holds and has not completed."""
        return self._arena.slots_out

    @property
    def lost_bytes(self) -> dict[DropStage, int]:
        """Bytes of records lost in this recording: no free buffer (SLOTS), unreadable (DECODE)."""
        overflow = self._arena.overflow_bytes - self._overflow_bytes_at_start
        return {DropStage.SLOTS: overflow, DropStage.DECODE: self._undecoded_bytes}

    @property
    def lost(self) -> Drops:
        """Records lost in this recording, per stage; None where only bytes are known."""
        drops: Drops = {}
        for stage, lost_bytes in self.lost_bytes.items():
            if lost_bytes:
                records = self.records_in(lost_bytes) if stage is DropStage.SLOTS else None
                drops[stage.value] = None if records is None else sum(records.values())
        return drops

    def records_in(self, size_bytes: int) -> dict[str, int] | None:
        """Return kind name → number of records in so many bytes; None when that is unknown."""
        if len(self._enabled_ever) != 1:
            return None
        (kind,) = self._enabled_ever
        return {kind.name: size_bytes // DTYPES[kind].itemsize}

    def start(
        self,
        kinds: frozenset[ActivityKind],
        disabled_domains: tuple[str, ...] = DISABLED_DOMAINS,
    ) -> dict[str, str]:
        """Subscribe and enable the kinds; return kind name → reason for those that failed.

        Raises CommandRefused when another recorder of this process is active, and MsptiError
        or LibraryUnavailable when MSPTI can't be subscribed to; nothing stays enabled then.
        """
        holder = _HOLDER.setdefault("subscription", self)
        if holder is not self or self.active:
            raise CommandRefused(
                f"{holder.purpose} is already recording in this process",
                f"stop {holder.purpose} first",
            )
        try:
            self._subscribe()
        except CALL_ERRORS:
            del _HOLDER["subscription"]
            raise
        self._discard_leftovers()
        self._reset_counters()
        self._disable_domains(disabled_domains)
        return self.change_kinds(kinds)

    def change_kinds(self, kinds: frozenset[ActivityKind]) -> dict[str, str]:
        """Record exactly these kinds from now on; returns kind name → reason for failures."""
        for kind in sorted(self._enabled - kinds):
            self._disable(kind)
        unavailable = {}
        for kind in sorted(kinds - self._enabled):
            try:
                self.enable(kind)
            except CALL_ERRORS as error:
                unavailable[kind.name] = str(error)
        return unavailable

    def enable(self, kind: ActivityKind) -> None:
        """Record one more kind from now on. Raises MsptiError."""
        self._call(f"msptiActivityEnable({kind.name})", self._mspti.enable, kind)
        self._enabled.add(kind)
        self._enabled_ever.add(kind)

    def flush(self) -> None:
        """Have MSPTI complete every buffer that holds records. Raises MsptiError."""
        self._call("msptiActivityFlushAll", self._mspti.flush_all)

    def drain(self) -> list[Batch]:
        """Decode and free all completed buffers; see :meth:`batches`."""
        return list(self.batches())

    def batches(self) -> Iterator[Batch]:
        """Decode completed buffers one at a time, freeing each before the next.

        When this recorder is not active, buffers that still arrive belong to a recording
        that has ended: they are freed, counted in ``late_records``, and yield nothing.
        """
        if not self.active:
            if "subscription" not in _HOLDER:
                self._discard_completed()
            return
        for buffer in self._arena.completed():
            if buffer.order < self._first_order:
                self._discard(buffer)
                continue
            for batch in self._decode(buffer):
                current = self._without_early(batch)
                if len(current):
                    yield current

    def stop(self) -> list[Batch]:
        """End the recording and return what was still inside MSPTI.

        Never raises: calls that failed are listed in ``problems``. Buffers that MSPTI
        completes later are accepted and discarded.
        """
        return list(self.ending())

    def ending(self) -> Iterator[Batch]:
        """End the recording as :meth:`stop` does, one buffer at a time; must be exhausted."""
        if not self.active:
            return
        self._disable_all()
        yield from self.batches()
        self._unsubscribe()
        yield from self.batches()
        self._give_way()

    def abandon(self) -> None:
        """End the recording and discard what is still inside MSPTI."""
        if not self.active:
            return
        self._disable_all()
        self._unsubscribe()
        self._give_way()
        self._discard_completed()

    # --- start and stop, step by step ---------------------------------------------

    def _subscribe(self) -> None:
        handle = self._call("msptiSubscribe", self._mspti.subscribe)
        try:
            self._call(
                "msptiActivityRegisterCallbacks",
                self._mspti.register_callbacks,
                self._arena.request_address,
                self._arena.complete_address,
            )
        except CALL_ERRORS:
            self._attempt("msptiUnsubscribe", self._mspti.unsubscribe, handle)
            raise
        self._subscription = handle

    def _disable_all(self) -> None:
        for kind in sorted(self._enabled):
            self._disable(kind)
        self._attempt("msptiActivityFlushAll", self._mspti.flush_all)

    def _unsubscribe(self) -> None:
        handle = self._subscription
        self._attempt("msptiUnsubscribe", self._mspti.unsubscribe, handle)
        self._attempt("msptiActivityFlushAll", self._mspti.flush_all)

    def _give_way(self) -> None:
        """Let another recorder have the subscription."""
        self._enable_domains()
        self._subscription = None
        _HOLDER.pop("subscription", None)

    def _discard_leftovers(self) -> None:
        """Have buffers of an earlier recording completed and thrown away.

        Those that MSPTI keeps even now are known by the number of their request.
        """
        self._attempt("msptiActivityFlushAll", self._mspti.flush_all)
        self._discard_completed()
        self._first_order = self._arena.requests

    def _reset_counters(self) -> None:
        self._start_ns = time.time_ns()
        self._early_until_s = time.monotonic() + EARLY_RECORDS_S
        self._overflow_bytes_at_start = self._arena.overflow_bytes
        self._undecoded_bytes = 0
        self._enabled.clear()
        self._enabled_ever.clear()
        self.problems.clear()

    def _disable_domains(self, domains: Iterable[str]) -> None:
        self._disabled_domains = tuple(domains)
        for name in self._disabled_domains:
            self._attempt(
                f"msptiActivityDisableMarkerDomain({name})",
                self._mspti.disable_marker_domain,
                name,
            )

    def _enable_domains(self) -> None:
        for name in self._disabled_domains:
            self._attempt(
                f"msptiActivityEnableMarkerDomain({name})",
                self._mspti.enable_marker_domain,
                name,
            )

    def _disable(self, kind: ActivityKind) -> None:
        self._attempt(f"msptiActivityDisable({kind.name})", self._mspti.disable, kind)
        self._enabled.discard(kind)

    # --- buffers --------------------------------------------------------------------

    def _decode(self, buffer: CompletedBuffer) -> tuple[Batch, ...]:
        try:
            decoded = decode(self._arena.view(buffer))
        finally:
            self._arena.release(buffer)
        self.buffers_read += 1
        self._undecoded_bytes += decoded.lost_bytes
        return decoded.batches

    def _discard_completed(self) -> None:
        for buffer in self._arena.completed():
            self._discard(buffer)

    def _discard(self, buffer: CompletedBuffer) -> None:
        try:
            parts = split(self._arena.view(buffer)).parts
            self.late_records += sum(len(records) for records in parts.values())
        finally:
            self._arena.release(buffer)

    def _without_early(self, batch: Batch) -> Batch:
        end_field = LAYOUTS[batch.kind].end_field
        if not end_field or time.monotonic() > self._early_until_s:
            return batch
        end_ns = batch.records[end_field]
        early = (end_ns < self._start_ns) & (end_ns >= EARLIEST_WALL_CLOCK_NS)
        count = int(early.sum())
        self.early_records += count
        return batch.select(~early) if count else batch

    # --- calls ------------------------------------------------------------------------

    def _call(self, text: str, function: Callable[..., T], *arguments: Any) -> T:
        self.call_in_progress = MsptiCall(text, time.monotonic())
        try:
            return function(*arguments)
        finally:
            self.call_in_progress = None

    def _attempt(self, text: str, function: Callable[..., object], *arguments: Any) -> None:
        try:
            self._call(text, function, *arguments)
        except CALL_ERRORS as error:
            self.problems.append(str(error))
