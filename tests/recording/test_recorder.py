"""A recording from start to stop: what belongs to it, and in which order MSPTI is told.

MSPTI is played by a few lines of Python that call the real native callbacks, so that
a test can complete any buffer at any moment.
"""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest

from msmon.errors import CommandRefused, MsptiError
from msmon.ffi import decode as decode_module
from msmon.ffi import prototypes
from msmon.ffi.arena import BufferArena
from msmon.recording.recorder import Recorder
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.sessions import DropStage

Kernel, API, Marker, MemCpy = (
    ActivityKind.Kernel,
    ActivityKind.API,
    ActivityKind.Marker,
    ActivityKind.MemCpy,
)


class PlayedMspti:
    """Notes every call; ``records`` puts records into a buffer of its own until flushed."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.refused: dict[str, MsptiError] = {}
        self.keeps_buffers = False
        self._current: tuple[int, int] | None = None
        self._valid = 0
        self._enabled: set[ActivityKind] = set()

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.refused:
            raise self.refused[call]

    def subscribe(self) -> int:
        self._note("subscribe")
        return 1

    def unsubscribe(self, handle: int) -> None:
        self._note("unsubscribe")

    def register_callbacks(self, request: int, complete: int) -> None:
        self._note("register")
        self._request = prototypes.BUFFER_REQUEST(request)
        self._complete = prototypes.BUFFER_COMPLETE(complete)

    def enable(self, kind: ActivityKind) -> None:
        self._note(f"enable {kind.name}")
        self._enabled.add(kind)

    def disable(self, kind: ActivityKind) -> None:
        self._note(f"disable {kind.name}")
        self._enabled.discard(kind)

    def disable_marker_domain(self, name: str) -> None:
        self._note(f"domain off {name}")

    def enable_marker_domain(self, name: str) -> None:
        self._note(f"domain on {name}")

    def flush_all(self) -> None:
        self._note("flush")
        if not self.keeps_buffers:
            self.complete()

    def records(self, kind: ActivityKind, count: int, end_ns: int | None = None) -> None:
        if kind not in self._enabled:
            return
        records = np.zeros(count, DTYPES[kind])
        records["kind"] = kind
        if "end_ns" in records.dtype.names:
            records["end_ns"] = time.time_ns() if end_ns is None else end_ns
        self.raw(records.tobytes())

    def raw(self, data: bytes) -> None:
        if self._current is None:
            buffer, size = ctypes.c_void_p(), ctypes.c_size_t()
            maximum = ctypes.c_size_t()
            self._request(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(maximum))
            self._current = buffer.value or 0, size.value
        ctypes.memmove(self._current[0] + self._valid, data, len(data))
        self._valid += len(data)

    def complete(self) -> None:
        if self._current is not None:
            address, size = self._current
            self._complete(address, size, self._valid)
        self._current, self._valid = None, 0


@pytest.fixture(scope="module")
def arena() -> BufferArena:
    return BufferArena(slot_count=2, slot_bytes=1 << 16)


@pytest.fixture
def mspti() -> PlayedMspti:
    return PlayedMspti()


@pytest.fixture
def recorder(mspti, arena):
    made = Recorder(mspti, arena, "a test")
    yield made
    mspti.refused.clear()
    made.stop()
    mspti.complete()
    made.drain()


def count(batches) -> dict[str, int]:
    counts: dict[str, int] = {}
    for batch in batches:
        counts[batch.kind.name] = counts.get(batch.kind.name, 0) + len(batch)
    return counts


def test_start_and_stop_tell_mspti_in_the_order_that_loses_least(recorder, mspti):
    assert recorder.start(frozenset({Kernel, API})) == {}
    recorder.stop()
    assert mspti.calls == [
        "subscribe",
        "register",
        "flush",
        "domain off communication",
        "enable Kernel",
        "enable API",
        "disable Kernel",
        "disable API",
        "flush",
        "unsubscribe",
        "flush",
        "domain on communication",
    ]
    assert not recorder.active


def test_records_come_out_with_a_flush_and_with_the_stop(recorder, mspti):
    recorder.start(frozenset({Kernel}))
    mspti.records(Kernel, 3)
    assert recorder.drain() == []
    recorder.flush()
    assert count(recorder.drain()) == {"Kernel": 3}
    mspti.records(Kernel, 4)
    assert count(recorder.stop()) == {"Kernel": 4}


def test_a_kind_that_cannot_be_enabled_is_told_and_the_others_go_on(recorder, mspti):
    mspti.refused["enable MemCpy"] = MsptiError("msptiActivityEnable", 6, "X", "set LD_PRELOAD")
    unavailable = recorder.start(frozenset({Kernel, MemCpy}))
    assert list(unavailable) == ["MemCpy"]
    assert "set LD_PRELOAD" in unavailable["MemCpy"]
    assert recorder.enabled_kinds == {Kernel}


def test_a_refused_subscription_leaves_nothing_behind(recorder, mspti, arena):
    mspti.refused["subscribe"] = MsptiError("msptiSubscribe", 2, "MULTIPLE_SUBSCRIBERS")
    with pytest.raises(MsptiError):
        recorder.start(frozenset({Kernel}))
    assert mspti.calls == ["subscribe"]
    mspti.refused.clear()
    assert recorder.start(frozenset({Kernel})) == {}


def test_two_recorders_never_record_at_once(recorder, mspti, arena):
    recorder.start(frozenset({Kernel}))
    other = Recorder(PlayedMspti(), arena, "another")
    with pytest.raises(CommandRefused, match="a test is already recording"):
        other.start(frozenset({Kernel}))
    mspti.records(Kernel, 3)
    recorder.flush()
    assert other.drain() == []
    assert count(recorder.drain()) == {"Kernel": 3}


def test_a_buffer_completed_after_the_stop_is_discarded_and_counted(recorder, mspti):
    recorder.start(frozenset({Kernel}))
    mspti.records(Kernel, 5)
    mspti.keeps_buffers = True
    assert recorder.stop() == []
    mspti.complete()
    assert recorder.drain() == []
    assert recorder.late_records == 5


def test_a_buffer_of_an_earlier_recording_never_reaches_the_next(recorder, mspti):
    recorder.start(frozenset({Kernel}))
    mspti.records(Kernel, 5)
    mspti.keeps_buffers = True
    recorder.stop()
    recorder.start(frozenset({Kernel}))
    mspti.complete()
    mspti.records(Kernel, 2)
    mspti.complete()
    assert count(recorder.drain()) == {"Kernel": 2}
    assert recorder.late_records == 5


def test_records_that_ended_before_the_start_are_left_out(recorder, mspti):
    recorder.start(frozenset({Kernel}))
    mspti.records(Kernel, 4, end_ns=recorder.start_ns - 1)
    mspti.records(Kernel, 2, end_ns=recorder.start_ns)
    assert count(recorder.stop()) == {"Kernel": 2}
    assert recorder.lost == {"early": 4}


HOUR_NS = 3_600 * 10**9


@pytest.fixture
def set_clock(monkeypatch):
    """Shift the wall clock from now on."""
    true_ns = time.time_ns

    def shift(shift_ns: int) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: true_ns() + shift_ns)

    yield shift
    monkeypatch.undo()


def test_records_after_the_clock_was_set_back_are_kept(recorder, mspti, set_clock):
    recorder.start(frozenset({Kernel, API}))
    mspti.records(Kernel, 4)
    set_clock(-HOUR_NS)
    mspti.records(Kernel, 5)
    mspti.records(API, 6)
    assert count(recorder.stop()) == {"Kernel": 9, "API": 6}
    assert recorder.lost == {}


def test_a_kind_that_has_begun_has_no_early_records(recorder, mspti, set_clock):
    """The clock is right again when the records are read, so that nothing tells of the step."""
    recorder.start(frozenset({Kernel}))
    mspti.records(Kernel, 4)
    recorder.flush()
    assert count(recorder.drain()) == {"Kernel": 4}
    set_clock(-HOUR_NS)
    mspti.records(Kernel, 5)
    set_clock(0)
    assert count(recorder.stop()) == {"Kernel": 5}


def test_early_records_are_told_from_current_ones_after_a_step_of_the_clock(
    recorder, mspti, set_clock
):
    recorder.start(frozenset({Kernel}))
    mspti.records(Kernel, 3, end_ns=recorder.start_ns - 2 * HOUR_NS)
    set_clock(-HOUR_NS)
    mspti.records(Kernel, 5)
    assert count(recorder.stop()) == {"Kernel": 5}
    assert recorder.lost == {"early": 3}


@pytest.mark.parametrize("end_ns", [0, 123_456_789])
def test_records_without_a_wall_clock_time_are_kept(recorder, mspti, end_ns):
    recorder.start(frozenset({Kernel}))
    mspti.records(Kernel, 4, end_ns=end_ns)
    assert count(recorder.stop()) == {"Kernel": 4}


def test_kinds_can_be_changed(recorder, mspti):
    recorder.start(frozenset({Kernel}))
    mspti.records(Kernel, 1)
    assert recorder.change_kinds(frozenset({API})) == {}
    mspti.records(Kernel, 10)
    mspti.records(API, 2)
    assert count(recorder.stop()) == {"Kernel": 1, "API": 2}


def test_records_without_a_free_buffer_are_counted(recorder, mspti):
    recorder.start(frozenset({Kernel}))
    for _ in range(3):
        mspti.records(Kernel, 6)
        mspti.complete()
    assert recorder.lost == {"slots": 6}
    assert recorder.losses.records_in(recorder.losses.size_bytes[DropStage.SLOTS]) == {"Kernel": 6}
    assert count(recorder.drain()) == {"Kernel": 12}
    mspti.records(Kernel, 1)
    assert count(recorder.stop()) == {"Kernel": 1}


def test_a_loss_of_mixed_kinds_is_known_in_bytes_only(recorder, mspti):
    recorder.start(frozenset({Kernel, ActivityKind.Communication}))
    for _ in range(3):
        mspti.records(Kernel, 6)
        mspti.complete()
    assert recorder.lost == {"slots": None}
    assert recorder.losses.records_in(recorder.losses.size_bytes[DropStage.SLOTS]) is None


def test_unreadable_bytes_cost_only_what_follows_them(recorder, mspti):
    recorder.start(frozenset({Kernel}))
    mspti.records(Kernel, 3)
    mspti.raw((999).to_bytes(8, "little") * 7)
    assert count(recorder.stop()) == {"Kernel": 3}
    assert recorder.lost == {"decode": None}


def test_an_error_while_decoding_costs_one_kind_of_one_buffer_and_is_counted(
    recorder, mspti, monkeypatch
):
    real = decode_module._batch

    def fail_for_api(kind, *arguments):
        if kind is API:
            raise MemoryError("a very long text")
        return real(kind, *arguments)

    recorder.start(frozenset({Kernel, API}))
    mspti.records(Kernel, 3)
    mspti.records(API, 4)
    recorder.flush()
    with monkeypatch.context() as patch:
        patch.setattr(decode_module, "_batch", fail_for_api)
        assert count(recorder.drain()) == {"Kernel": 3}
    mspti.records(API, 2)
    assert count(recorder.stop()) == {"API": 2}
    assert recorder.lost == {"decode": 4}
    assert recorder.losses.failed == {"API": 4}
    assert "a very long text" in recorder.losses.error


def test_a_buffer_that_cannot_be_split_is_counted_and_given_back(
    recorder, mspti, arena, monkeypatch
):
    def fail(data):
        raise ZeroDivisionError("unforeseen")

    recorder.start(frozenset({Kernel}))
    mspti.records(Kernel, 3)
    recorder.flush()
    with monkeypatch.context() as patch:
        patch.setattr(decode_module.walk, "split", fail)
        assert recorder.drain() == []
    assert recorder.lost == {"decode": None}
    assert arena.slots_free == arena.slot_count


def test_what_an_abandoned_recording_had_not_read_is_counted(recorder, mspti):
    recorder.start(frozenset({Kernel}))
    mspti.records(Kernel, 3)
    recorder.abandon()
    assert recorder.lost == {"decode": 3}


def test_buffers_stay_where_they_are_while_they_may_not_be_taken(recorder, mspti):
    recorder.start(frozenset({Kernel}))
    mspti.records(Kernel, 3)
    recorder.flush()
    asked = []
    assert list(recorder.batches(lambda size_bytes: bool(asked.append(size_bytes)))) == []
    assert asked == [3 * DTYPES[Kernel].itemsize]
    assert count(recorder.drain()) == {"Kernel": 3}


def test_losses_of_one_recording_do_not_show_in_the_next(recorder, mspti):
    recorder.start(frozenset({Kernel}))
    mspti.raw((999).to_bytes(8, "little") * 7)
    recorder.stop()
    recorder.start(frozenset({Kernel}))
    assert recorder.lost == {}


def test_calls_that_fail_at_the_end_do_not_keep_the_records(recorder, mspti):
    recorder.start(frozenset({Kernel}))
    mspti.records(Kernel, 3)
    mspti.refused["disable Kernel"] = MsptiError("msptiActivityDisable", 3, "DEVICE_OFFLINE")
    mspti.refused["unsubscribe"] = MsptiError("msptiUnsubscribe", 999, "INNER_ERROR")
    assert count(recorder.stop()) == {"Kernel": 3}
    assert len(recorder.problems) == 2
    assert not recorder.active


def test_a_call_in_progress_is_told(recorder, mspti):
    seen = []
    mspti.enable = lambda kind: seen.append(recorder.call_in_progress.text)
    recorder.start(frozenset({Kernel}))
    assert seen == ["msptiActivityEnable(Kernel)"]
    assert recorder.call_in_progress is None
