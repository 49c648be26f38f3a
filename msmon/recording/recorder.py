"""One MSPTI subscription: from the kinds to collect to batches of decoded records.

A stop disables every kind, flushes, unsubscribes and flushes again: mspti_activity.h leaves the
order open, and this one loses least. At the end of the process nobody else needs the
subscription, so it is kept: ``msptiUnsubscribe`` waits for MSPTI's threads, with some drivers for
seconds, and a process that ends meanwhile crashes in MSPTI's static destructors.

What belongs to an earlier recording is left out and counted: *early* records ended before this
one began but came in a buffer of it; *late* ones came in a buffer that the earlier recording had
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msmon.ffi.decode import decode
from msmon.ffi.walk import split
from msmon.recording.calls import CALL_ERRORS, MsptiCall, MsptiCalls
from msmon.recording.early_records import EarlyRecords
from msmon.recording.holder import (
    give_subscription_back,
    subscription_holder,
    take_subscription,
)
from msmon.recording.lost_records import LostRecords
from msmon.recording.subscription import DISABLED_DOMAINS, Subscription
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.sessions import Drops, DropStage

if TYPE_CHECKING:
    from msmon.ffi.arena import BufferArena, CompletedBuffer
    from msmon.ffi.mspti import Mspti


def _any_buffer(size_bytes: int) -> bool:
    return True


class Recorder:
    """Records activity of this process; at most one recorder is active at a time.

    All methods are called, and all state is written, by one thread (the agent's collector, or
    that of a ``Recording``). ``call_in_progress`` and ``calls_are_over`` may be read, and
    :meth:`forbid_calls` be called, from any thread.
    """

    def __init__(self, mspti: Mspti, arena: BufferArena, purpose: str = "npu-monitor") -> None:
        self.purpose = purpose
        self.late_records = 0
        """Records in buffers that an earlier recording had asked for; they were left out."""
        self.buffers_read = 0
        self._mspti = mspti
        self._arena = arena
        self._enabled: set[ActivityKind] = set()
        self._enabled_ever: set[ActivityKind] = set()
        self.losses = LostRecords(arena, self._enabled_ever)
        """Of the recording that runs, or of the last one."""
        self._calls = MsptiCalls()
        self._subscription = Subscription(mspti, arena, self._calls)
        self._early = EarlyRecords()
        self._first_order = 0

    @property
    def active(self) -> bool:
        """Whether this recorder holds the subscription."""
        return self._subscription.held

    @property
    def enabled_kinds(self) -> frozenset[ActivityKind]:
        """The kinds that MSPTI is recording for us now."""
        return frozenset(self._enabled)

    @property
    def start_ns(self) -> int:
        """Wall clock of the start: records that ended before it are left out."""
        return self._early.start_ns

    @property
    def call_in_progress(self) -> MsptiCall | None:
        """The MSPTI call that has not returned yet."""
        return self._calls.in_progress

    @property
    def problems(self) -> list[str]:
        """MSPTI calls that failed since the start."""
        return self._calls.problems

    @property
    def slots_out(self) -> int:
        """Buffers that MSPTI holds and has not completed."""
        return self._arena.slots_out

    @property
    def has_spare_slots(self) -> bool:
        """Whether at least a quarter of all buffers is free, so that full ones can wait a while."""
        return 4 * self._arena.slots_free >= self._arena.slot_count

    @property
    def lost(self) -> Drops:
        """Records lost in this recording or left out of it, per stage; None: unknown how many."""
        early = self._early.count
        return {**self.losses.drops, **({DropStage.EARLY: early} if early else {})}

    def start(
        self,
        kinds: frozenset[ActivityKind],
        disabled_domains: tuple[str, ...] = DISABLED_DOMAINS,
    ) -> dict[str, str]:
        """Subscribe and enable the kinds; return kind name → reason for those that failed.

        Raises CommandRefused when another recorder of this process is active, and MsptiError
        or LibraryUnavailable when MSPTI can't be subscribed to; nothing stays enabled then.
        """
        take_subscription(self)
        try:
            self._subscription.take()
        except CALL_ERRORS:
            give_subscription_back()
            raise
        self._discard_leftovers()
        self._reset_counters()
        self._subscription.disable_domains(disabled_domains)
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
        self._calls.make(f"msptiActivityEnable({kind.name})", self._mspti.enable, kind)
        self._enabled.add(kind)
        self._enabled_ever.add(kind)

    def flush(self) -> None:
        """Have MSPTI complete every buffer that holds records. Raises MsptiError."""
        self._calls.make("msptiActivityFlushAll", self._mspti.flush_all)

    def drain(self) -> list[Batch]:
        """Decode and free all completed buffers; see :meth:`batches`."""
        return list(self.batches())

    def batches(self, may_take: Callable[[int], bool] = _any_buffer) -> Iterator[Batch]:
        """Decode completed buffers one at a time, freeing each before the next.

        ``may_take`` is asked about the size in bytes of each; from the first on that it declines,
        they stay where they are until the next call. When this recorder is not active, buffers that
        still arrive belong to a recording that has ended: they are freed, counted in
        ``late_records``, and yield nothing.
        """
        if not self.active:
            if not subscription_holder():
                self._discard_completed()
            return
        for buffer in self._arena.completed():
            if buffer.order < self._first_order:
                self._discard(buffer)
                continue
            if not may_take(buffer.valid_bytes):
                return
            for batch in self._decode(buffer):
                current = self._early.taken_out_of(batch)
                if len(current):
                    yield current

    def stop(self) -> list[Batch]:
        """End the recording and return what was still inside MSPTI.

        Never raises: calls that failed are listed in ``problems``. Buffers that MSPTI
        completes later are accepted and discarded.
        """
        return list(self.ending())

    def ending(self, before_each: Callable[[int], bool] = _any_buffer) -> Iterator[Batch]:
        """End the recording as :meth:`stop` does, one buffer at a time; must be exhausted.

        ``before_each`` is called with the size in bytes of each buffer; it may wait, and must
        return True.
        """
        if not self.active:
            return
        self._disable_all()
        yield from self.batches(before_each)
        self._subscription.end()
        yield from self.batches(before_each)
        self._subscription.enable_domains()
        self._give_way()

    def ending_with_process(
        self, before_each: Callable[[int], bool] = _any_buffer
    ) -> Iterator[Batch]:
        """End the recording because the process ends; as :meth:`ending`, see the module.

        MSPTI keeps its subscription, and is not called again.
        """
        if not self.active:
            return
        self._disable_all()
        self._calls.forbid()
        yield from self.batches(before_each)
        self._give_way()

    def abandon(self) -> None:
        """End the recording; what was not read yet is counted as lost."""
        if not self.active:
            return
        self._disable_all()
        self._subscription.end()
        self._subscription.enable_domains()
        for buffer in self._arena.completed():
            records = self._discard(buffer)
            if buffer.order >= self._first_order:
                self.losses.note_failed(records, "the session ended after an unforeseen error")
        self._give_way()

    def forbid_calls(self) -> None:
        """Let no further call into MSPTI begin, because the process is about to end."""
        self._calls.forbid()

    @property
    def calls_are_over(self) -> bool:
        """Whether no call into MSPTI runs and none can begin."""
        return self._calls.are_over

    def _disable_all(self) -> None:
        for kind in sorted(self._enabled):
            self._disable(kind)
        self._calls.attempt("msptiActivityFlushAll", self._mspti.flush_all)

    def _give_way(self) -> None:
        """Let another recorder have the subscription."""
        self._subscription.forget()
        give_subscription_back()

    def _discard_leftovers(self) -> None:
        """Have buffers of an earlier recording completed and thrown away.

        MSPTI may keep some even now. They are recognised when they come: the number of their
        request is smaller than that of the first request of this recording.
        """
        self._calls.attempt("msptiActivityFlushAll", self._mspti.flush_all)
        self._discard_completed()
        self._first_order = self._arena.requests

    def _reset_counters(self) -> None:
        self._early = EarlyRecords()
        self._enabled.clear()
        self._enabled_ever = set()
        self.losses = LostRecords(self._arena, self._enabled_ever)
        self._calls.problems.clear()

    def _disable(self, kind: ActivityKind) -> None:
        self._calls.attempt(f"msptiActivityDisable({kind.name})", self._mspti.disable, kind)
        self._enabled.discard(kind)

    def _decode(self, buffer: CompletedBuffer) -> tuple[Batch, ...]:
        self.buffers_read += 1
        try:
            decoded = decode(self._arena.view(buffer))
        except Exception as error:  # noqa: BLE001 - it costs this buffer only, and is counted
            self.losses.note_unreadable(buffer.valid_bytes, repr(error))
            return ()
        finally:
            self._arena.release(buffer)
        self.losses.note_decoded(decoded)
        return decoded.batches

    def _discard_completed(self) -> None:
        for buffer in self._arena.completed():
            self._discard(buffer)

    def _discard(self, buffer: CompletedBuffer) -> dict[str, int]:
        """Free a buffer unread; return kind name → records that were in it."""
        try:
            parts = split(self._arena.view(buffer)).parts
        finally:
            self._arena.release(buffer)
        records = {kind.name: len(part) for kind, part in parts.items()}
        self.late_records += sum(records.values())
        return records
