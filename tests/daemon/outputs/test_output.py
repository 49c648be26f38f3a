"""Queues, retries and acknowledgements: an output that fails costs only what it must."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from fixtures.waiting import poll_until

from msmon.bus.codec import encode
from msmon.bus.messages import Reply
from msmon.bus.rows import DaemonRow
from msmon.daemon.access.owners import Owner
from msmon.daemon.access.shares import LIMITS, Resource, Shares
from msmon.daemon.outputs import writer
from msmon.daemon.outputs.delivery import (
    BASE_BYTES,
    BatchDelivery,
    Closing,
    NoteDelivery,
    Skipped,
    WindowDelivery,
)
from msmon.daemon.outputs.output import Output
from msmon.daemon.outputs.output_session import MAX_PLACES, OpenAnswer, OutputSession
from msmon.errors import SinkError
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.records.window_header import WindowHeader
from msmon.sessions import DropStage, Gap, SessionEnd, SessionInfo
from msmon.sinks.base import SessionOutput, Sink
from msmon.sinks.sqlite.sink import SqliteSink

END = SessionEnd(9, "stop")


class RecordingSink(Sink):
    """Keeps what was committed; fails as told by ``failures`` (method → remaining times)."""

    NAME = "recording"
    HELP = "for tests"
    WANTS_RECORDS = True
    committed: list[Any]
    failures: dict[str, int]
    instance: RecordingSink
    written_seq = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.committed, self._taken, self.failures = [], [], {}
        self.gate = threading.Event()
        self.gate.set()
        type(self).instance = self

    def _may_fail(self, method: str) -> None:
        self.gate.wait(10)
        if self.failures.get(method, 0):
            self.failures[method] -= 1
            raise SinkError(f"{method} fails")

    def open_session(self, session: SessionInfo) -> SessionOutput:
        self._may_fail("open_session")
        self._taken = []
        return SessionOutput(("/file",), self.written_seq)

    def write_records(self, session_id: str, seq: int, batch: Batch) -> None:
        self._may_fail("write_records")
        self._taken.append((seq, len(batch)))

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        self._taken.append(gap)

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        self._taken.append(end)

    def commit(self) -> None:
        self._may_fail("commit")
        self.committed += self._taken
        self._taken = []


class Acknowledgements:
    """Follows what an output calls safe; ``wait(seq)`` returns once it has reached ``seq``."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.last = 0

    def follow(self, output: Output) -> None:
        output.on_safe = lambda session_id: self._take(output.safe_seq(session_id))

    def _take(self, seq: int) -> None:
        with self._changed:
            self.last = max(self.last, seq)
            self._changed.notify_all()

    def wait(self, seq: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.last >= seq, 10)


@pytest.fixture
def acknowledged() -> Acknowledgements:
    return Acknowledgements()


@pytest.fixture
def output(acknowledged: Acknowledgements) -> Iterator[Output]:
    output = Output(RecordingSink, {}, queue_bytes=400_000)
    acknowledged.follow(output)
    yield output
    RecordingSink.instance.gate.set()
    output.close(5)


def records(batch: Batch, seq: int, session_id: str = "session-0") -> BatchDelivery:
    payload = tuple(batch.to_frames())
    return BatchDelivery(session_id, seq, int(batch.kind), len(batch), payload)


def closing(seq: int, session_id: str = "session-0") -> Closing:
    return Closing(session_id, seq, END)


def open_session(output: Output, session: SessionInfo) -> OpenAnswer:
    answers: list[OpenAnswer] = []
    answered = threading.Event()

    def done(answer: OpenAnswer) -> None:
        answers.append(answer)
        answered.set()

    output.open_session(session, Owner("uid 0", 0), done)
    assert answered.wait(10)
    return answers[0]


def test_batches_are_committed_and_acknowledged(
    output: Output, acknowledged: Acknowledgements, kernels: Any, session: Any, tmp_path: Path
) -> None:
    assert open_session(output, session(tmp_path)) == ("/file",)
    output.put(records(kernels(5), 2))
    output.put(closing(3))
    acknowledged.wait(3)
    assert RecordingSink.instance.committed == [(2, 5), END]
    assert output.status().written == {"Kernel": 5}
    assert output.status().queue_bytes == 0


@pytest.mark.parametrize("method", ["write_records", "commit", "open_session"])
def test_a_failing_output_is_tried_again_and_loses_nothing(
    output: Output,
    acknowledged: Acknowledgements,
    kernels: Any,
    session: Any,
    tmp_path: Path,
    method: str,
) -> None:
    RecordingSink.instance.failures = {method: 2}
    answer = open_session(output, session(tmp_path))
    assert isinstance(answer, SinkError if method == "open_session" else tuple)
    for seq in range(2, 6):
        output.put(records(kernels(seq), seq))
    acknowledged.wait(5)
    assert RecordingSink.instance.committed == [(2, 2), (3, 3), (4, 4), (5, 5)]
    assert output.status().problem == ""
    assert output.drops("session-0") == {}


def test_a_full_queue_drops_counts_and_writes_a_gap(
    output: Output, acknowledged: Acknowledgements, kernels: Any, session: Any, tmp_path: Path
) -> None:
    open_session(output, session(tmp_path))
    RecordingSink.instance.gate.clear()
    for seq in range(2, 12):
        output.put(records(kernels(500), seq))
    RecordingSink.instance.gate.set()
    output.put(closing(12))
    acknowledged.wait(12)
    written = [item for item in RecordingSink.instance.committed if isinstance(item, tuple)]
    gaps = [item for item in RecordingSink.instance.committed if isinstance(item, Gap)]
    dropped = output.drops("session-0")["sink"]
    assert dropped is not None
    assert dropped > 0
    assert 500 * len(written) + dropped == 5000
    assert {gap.stage for gap in gaps} == {"sink"}
    assert sum((gap.records or {})["Kernel"] for gap in gaps) == dropped


def test_a_gap_and_the_places_that_it_stands_for_are_committed_together(
    kernels: Any, session: Any, tmp_path: Path
) -> None:
    """A daemon killed between two commits must not get records again that a gap calls lost."""
    queued = OutputSession(session(tmp_path), Owner("uid 1"), None)
    for seq in (2, 6):
        queued.append(records(kernels(10), seq))
        if seq == 2:
            for lost_seq in (3, 4, 5):
                delivery = records(kernels(10), lost_seq)
                queued.append(queued.dropped(delivery, DropStage.SINK, "full"))
    taken = []
    while (delivery := queued.take_next()) is not None:
        gap = delivery.gap.records if isinstance(delivery, Skipped) and delivery.gap else None
        taken.append((delivery.seq, gap))
        queued.handed_over(delivery)
    assert taken == [(2, None), (5, {"Kernel": 30}), (6, None)]
    assert queued.drops == {"sink": 30}


def test_places_of_what_is_dropped_stay_few_whatever_it_is(
    kernels: Any, session: Any, tmp_path: Path
) -> None:
    queued = OutputSession(session(tmp_path), Owner("uid 1"), None)
    header = WindowHeader(0, 1, 2, kept={"Kernel": 3})
    for seq in range(2, 2002, 2):
        lost = records(kernels(10), seq), WindowDelivery("session-0", seq + 1, header, ())
        for delivery in lost:
            queued.append(queued.dropped(delivery, DropStage.SINK, "full"))
    assert len(queued.waiting) <= MAX_PLACES + 1
    assert queued.drops == {"sink": 10_000, "windows": 3000}


def test_what_was_given_up_is_told_in_the_output_once_it_works_again(
    output: Output,
    acknowledged: Acknowledgements,
    kernels: Any,
    session: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "GIVE_UP_AFTER_S", 0.0)
    open_session(output, session(tmp_path))
    RecordingSink.instance.failures = {"commit": 10**6}
    output.put(records(kernels(5), 2))
    output.put(closing(3))
    acknowledged.wait(3)
    assert output.drops("session-0") == {"disk": 5}
    assert output.problem("session-0") == "commit fails"
    RecordingSink.instance.failures = {}
    poll_until(lambda: not output.problem("session-0"), "the output to work again")
    gap, end = RecordingSink.instance.committed
    assert (gap.stage, gap.records, end) == ("disk", {"Kernel": 5}, END)
    assert output.status().queue_bytes == 0


class OrderedSink(RecordingSink):
    """Remembers the order of openings and batches."""

    calls: ClassVar[list[str]] = []

    def open_session(self, session: SessionInfo) -> SessionOutput:
        self.calls.append(f"open {session.session_id}")
        return SessionOutput()

    def write_records(self, session_id: str, seq: int, batch: Batch) -> None:
        self.gate.wait(10)
        self.calls.append(f"write {seq}")


def test_an_opening_does_not_wait_for_what_others_have_queued(
    acknowledged: Acknowledgements, kernels: Any, session: Any, tmp_path: Path
) -> None:
    OrderedSink.calls = []
    output = Output(OrderedSink, {})
    acknowledged.follow(output)
    open_session(output, session(tmp_path))
    OrderedSink.instance.gate.clear()
    for seq in range(2, 12):
        output.put(records(kernels(1), seq))
    opened = threading.Event()
    other = dataclasses.replace(session(tmp_path), session_id="session-1")
    output.open_session(other, Owner("uid 0", 0), lambda answer: opened.set())
    OrderedSink.instance.gate.set()
    assert opened.wait(10)
    acknowledged.wait(11)
    output.close(5)
    assert OrderedSink.calls.index("open session-1") <= OrderedSink.calls.index("write 3")
    assert [call for call in OrderedSink.calls if "write" in call] == [
        f"write {seq}" for seq in range(2, 12)
    ]


class BusySink(RecordingSink):
    """Never runs out of work: each batch of the busy session is followed by another at once."""

    failed_once = False
    written_again: ClassVar[threading.Event] = threading.Event()
    more: ClassVar[Callable[[int], None]]

    def write_records(self, session_id: str, seq: int, batch: Batch) -> None:
        if session_id == "busy":
            if not self.written_again.is_set():
                type(self).more(seq + 1)
        elif self.failed_once:
            self.written_again.set()
        else:
            self.failed_once = True
            raise SinkError("no room for a moment")


def test_a_session_that_failed_gets_its_turn_while_others_keep_the_output_busy(
    kernels: Any, session: Any, tmp_path: Path
) -> None:
    output = Output(BusySink, {})
    BusySink.more = lambda seq: output.put(records(kernels(1), seq, "busy"))
    open_session(output, session(tmp_path))
    open_session(output, dataclasses.replace(session(tmp_path), session_id="busy"))
    BusySink.more(2)
    output.put(records(kernels(1), 2))
    assert BusySink.written_again.wait(20)
    output.close(5)


def test_a_session_that_was_given_up_and_comes_back_goes_on(
    output: Output, acknowledged: Acknowledgements, kernels: Any, session: Any, tmp_path: Path
) -> None:
    RecordingSink.instance.failures = {"commit": 1}
    open_session(output, session(tmp_path))
    output.put(records(kernels(2), 2))
    output.put(closing(2))
    open_session(output, session(tmp_path))
    output.put(records(kernels(3), 3))
    acknowledged.wait(3)
    assert RecordingSink.instance.committed == [(2, 2), END, (3, 3)]


def test_messages_lost_with_an_earlier_daemon_leave_a_gap(
    output: Output, acknowledged: Acknowledgements, kernels: Any, session: Any, tmp_path: Path
) -> None:
    RecordingSink.instance.written_seq = 5
    open_session(output, session(tmp_path))
    for seq in (5, 6, 9):
        output.put(records(kernels(seq), seq))
    acknowledged.wait(9)
    first, gap, last = RecordingSink.instance.committed
    assert (first, last) == ((6, 6), (9, 9))
    assert (gap.stage, gap.records) == ("sink", None)


def test_frames_that_do_not_fit_cost_one_batch(
    output: Output, acknowledged: Acknowledgements, kernels: Any, session: Any, tmp_path: Path
) -> None:
    open_session(output, session(tmp_path))
    damaged = BatchDelivery("session-0", 2, int(ActivityKind.Kernel), 7, (b"abc", b""))
    output.put(damaged)
    output.put(records(kernels(4), 3))
    acknowledged.wait(3)
    assert output.drops("session-0") == {"decode": 7}
    gap, batch = RecordingSink.instance.committed
    assert (gap.stage, batch) == ("decode", (3, 4))


def test_counts_of_a_liar_add_up_to_what_can_still_be_told(
    output: Output, acknowledged: Acknowledgements, session: Any, tmp_path: Path
) -> None:
    open_session(output, session(tmp_path))
    for seq in (2, 3):
        frames = (b"abc", b"")
        output.put(BatchDelivery("session-0", seq, int(ActivityKind.Kernel), 2**53, frames))
    acknowledged.wait(3)
    assert output.drops("session-0") == {"decode": 2**53}
    encode(Reply("ok", daemon=DaemonRow("1", sinks=[output.status()])))


def test_what_can_not_be_written_by_the_end_is_counted(
    output: Output, kernels: Any, session: Any, tmp_path: Path
) -> None:
    open_session(output, session(tmp_path))
    RecordingSink.instance.failures = {"commit": 1000}
    output.put(records(kernels(4), 2))
    started = time.monotonic()
    output.close(0.5)
    assert time.monotonic() - started < 5
    assert output.drops("session-0") == {"disk": 4}


def test_one_owner_s_flood_leaves_the_queue_to_others(
    acknowledged: Acknowledgements,
    kernels: Any,
    session: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = dataclasses.replace(LIMITS[Resource.QUEUED_BYTES], amount=100_000)
    monkeypatch.setitem(LIMITS, Resource.QUEUED_BYTES, few)
    shares = Shares()
    output = Output(RecordingSink, {})
    output.count_against(shares)
    acknowledged.follow(output)
    open_session(output, session(tmp_path))
    output.open_session(session(tmp_path, rank=1), Owner("uid 7", 7), lambda answer: None)
    RecordingSink.instance.gate.clear()
    for seq in range(2, 1002):
        output.put(records(kernels(500), seq))
        output.put(NoteDelivery("session-0", seq, "key", b"x" * 1000))
    output.put(records(kernels(500), 2, "session-1"))
    assert shares.used("uid 0", Resource.QUEUED_BYTES) <= 110_000
    assert output.drops("session-1") == {}
    dropped = output.drops("session-0")["sink"]
    RecordingSink.instance.gate.set()
    output.put(closing(1002))
    acknowledged.wait(1002)
    output.close(5)
    written = output.status().written["Kernel"]
    assert written - 500 + (dropped or 0) == 500_000
    assert shares.used("uid 0", Resource.QUEUED_BYTES) == 0


def test_owners_share_the_queue_of_an_output_and_are_written_in_turn(
    acknowledged: Acknowledgements, kernels: Any, session: Any, tmp_path: Path
) -> None:
    OrderedSink.calls = []
    output = Output(OrderedSink, {}, queue_bytes=400_000)
    acknowledged.follow(output)
    for number in range(30):
        open_session(output, dataclasses.replace(session(tmp_path), session_id=f"many {number}"))
    output.open_session(session(tmp_path), Owner("uid 7", 7), lambda answer: None)
    OrderedSink.instance.gate.clear()
    batch = kernels(100)
    for seq in range(2, 22):
        for number in range(30):
            output.put(records(batch, seq, f"many {number}"))
    size_bytes = records(batch, 2).size_bytes
    assert 180_000 < output.status().queue_bytes <= 200_000 + 30 * 10 * BASE_BYTES
    output.put(records(batch, 999))
    assert output.drops("session-0") == {}
    OrderedSink.instance.gate.set()
    acknowledged.wait(999)
    output.close(5)
    assert len(OrderedSink.calls) > 31 + 50_000 // size_bytes
    assert OrderedSink.calls[31:].index("write 999") <= 11


def test_a_sink_process_that_is_killed_is_replaced(
    acknowledged: Acknowledgements, kernels: Any, session: Any, tmp_path: Path
) -> None:
    output = Output(SqliteSink, {})
    acknowledged.follow(output)
    opened = open_session(output, session(tmp_path))
    assert isinstance(opened, tuple)
    output.put(records(kernels(100), 2))
    acknowledged.wait(2)
    (child,) = (
        process
        for process in psutil.Process().children()
        if "msmon.daemon.outputs.child" in " ".join(process.cmdline())
    )
    child.kill()
    output.put(records(kernels(100), 3))
    output.put(closing(4))
    acknowledged.wait(4)
    output.close(5)
    connection = sqlite3.connect(opened[0])
    assert connection.execute("SELECT count(*) FROM TASK").fetchone() == (200,)
    connection.close()


def test_a_session_that_came_back_is_not_given_up_for_its_earlier_end(
    output: Output,
    acknowledged: Acknowledgements,
    kernels: Any,
    session: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_session(output, session(tmp_path))
    RecordingSink.instance.gate.clear()
    RecordingSink.instance.failures = {"commit": 3}
    output.put(records(kernels(5), 2))
    output.put(closing(2))
    monkeypatch.setattr(writer, "GIVE_UP_AFTER_S", 0.0)
    output.open_session(session(tmp_path), Owner("uid 0", 0), lambda answer: None)
    RecordingSink.instance.gate.set()
    poll_until(lambda: output.drops("session-0") == {} and acknowledged.last >= 2, "its return")
    output.put(records(kernels(6), 3))
    acknowledged.wait(3)
    assert RecordingSink.instance.committed == [(2, 5), END, (3, 6)]
    assert output.drops("session-0") == {}


def test_an_output_that_could_not_be_opened_at_first_lists_its_files_once_it_works(
    output: Output, acknowledged: Acknowledgements, kernels: Any, session: Any, tmp_path: Path
) -> None:
    RecordingSink.instance.failures = {"open_session": 2}
    assert isinstance(open_session(output, session(tmp_path)), SinkError)
    assert output.files("session-0") == ()
    output.put(records(kernels(5), 2))
    acknowledged.wait(2)
    assert output.files("session-0") == ("/file",)


def test_records_that_a_lost_answer_left_counted_as_dropped_are_counted_no_longer(
    kernels: Any, session: Any, tmp_path: Path
) -> None:
    """The process had committed before it was ended; the next one says so when it opens."""
    given_up = OutputSession(session(tmp_path), Owner("uid 1"), None, resumable=True)
    given_up.opened(SessionOutput(("/file",), 0), 1)
    for seq in (2, 3):
        given_up.append(records(kernels(10), seq))
    given_up.handed_over(records(kernels(10), 2))
    given_up.uncertain_seq = 2
    given_up.append(closing(4))
    given_up.give_up(DropStage.DISK, "failed for too long")
    assert given_up.drops == {"disk": 20}
    given_up.opened(SessionOutput(("/file",), 2), 2)
    assert given_up.drops == {"disk": 10}
    new = [item for item in given_up.waiting if given_up.is_new(item)]
    assert isinstance(new[0], Skipped)
    assert new[0].gap is not None
    assert new[0].gap.records == {"Kernel": 10}


def test_the_first_session_after_the_sink_process_has_died_can_be_opened(
    acknowledged: Acknowledgements, session: Any, tmp_path: Path
) -> None:
    output = Output(SqliteSink, {})
    acknowledged.follow(output)
    assert isinstance(open_session(output, session(tmp_path / "first")), tuple)
    (child,) = (
        process
        for process in psutil.Process().children()
        if "msmon.daemon.outputs.child" in " ".join(process.cmdline())
    )
    child.kill()
    poll_until(lambda: child.status() == psutil.STATUS_ZOMBIE, "the end of the process")
    other = dataclasses.replace(session(tmp_path / "second"), session_id="session-1")
    assert isinstance(open_session(output, other), tuple)
    output.close(5)
