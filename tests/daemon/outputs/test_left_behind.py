"""What an output had acknowledged and not written is counted and told after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

import pytest
from fixtures.waiting import poll_until

from msmon.daemon.access.owners import Owner
from msmon.daemon.outputs import lag
from msmon.daemon.outputs.delivery import BatchDelivery, WindowDelivery
from msmon.daemon.outputs.output import Output
from msmon.daemon.outputs.stored_progress import ProgressDirectory
from msmon.errors import SinkError
from msmon.records.batch import Batch
from msmon.records.window_frames import frames_of
from msmon.records.window_header import WindowHeader
from msmon.records.windows import Window
from msmon.sessions import Gap, SessionEnd, SessionInfo
from msmon.sinks.base import Progress, ResumableSink, SessionOutput, Sink

Kernels = Callable[[int], Batch]
Start = Callable[..., Output]


class RecordsSink(ResumableSink):
    """Keeps what it has committed over restarts; fails while ``error`` is set."""

    NAME = "records"
    HELP = "for tests"
    WANTS_RECORDS = True
    error: Optional[Exception] = None
    committed: list[Any]
    seq: int

    def open_session(
        self, session: SessionInfo, progress: Optional[Progress] = None
    ) -> SessionOutput:
        self._taken: list[tuple[int, Any]] = []
        return SessionOutput(("/file",), self.seq)

    def write_records(self, session_id: str, seq: int, batch: Batch) -> None:
        self._taken.append((seq, len(batch)))

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        pass

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        self._taken.append((seq, (str(gap.stage), gap.records)))

    def commit(self) -> None:
        if self.error is not None:
            raise self.error
        cls = type(self)
        cls.committed += [value for _, value in self._taken]
        cls.seq = max([cls.seq, *(seq for seq, _ in self._taken)])
        self._taken = []


class WindowsSink(Sink):
    """Knows nothing of what an earlier daemon has written."""

    NAME = "windows"
    HELP = "for tests"
    error: Optional[Exception] = None
    committed: list[Any]

    def open_session(self, session: SessionInfo) -> SessionOutput:
        return SessionOutput()

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        pass

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        self.committed.append((str(gap.stage), gap.records))

    def commit(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture
def start(tmp_path: Path, session: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    started: list[Output] = []
    for sink in (RecordsSink, WindowsSink):
        monkeypatch.setattr(sink, "committed", [], raising=False)
        monkeypatch.setattr(sink, "error", None)
    monkeypatch.setattr(RecordsSink, "seq", 0, raising=False)
    monkeypatch.setattr(lag, "LAST_RETRY_S", 0.1)

    def start_output(sink: type[Sink]) -> Output:
        progress = ProgressDirectory(tmp_path / "state", sink.NAME)
        started.append(Output(sink, {}, progress=progress))
        started[-1].open_session(session(tmp_path), Owner("uid 0", 0), lambda answer: None)
        return started[-1]

    yield start_output
    for output in started:
        output.close(5)


def records(batch: Batch, seq: int) -> BatchDelivery:
    return BatchDelivery("session-0", seq, int(batch.kind), len(batch), tuple(batch.to_frames()))


def leave_behind(output: Output, sink: Any, last_seq: int) -> None:
    poll_until(lambda: output.problem("session-0"), "the failure")
    output.leave_behind("session-0")
    assert output.safe_seq("session-0") == last_seq
    output.close(0.2)
    sink.error = None


def test_the_next_daemon_counts_what_was_acknowledged_and_not_written(
    start: Start, kernels: Kernels
) -> None:
    first = start(RecordsSink)
    first.put(records(kernels(5), 2))
    poll_until(lambda: first.safe_seq("session-0") == 2, "the first batch")
    RecordsSink.error = SinkError("the disk is full")
    for seq in (3, 4):
        first.put(records(kernels(10 * seq), seq))
    leave_behind(first, RecordsSink, 4)
    second = start(RecordsSink)
    second.put(records(kernels(6), 5))
    poll_until(lambda: second.safe_seq("session-0") == 5, "the next batch")
    assert RecordsSink.committed == [5, ("disk", {"Kernel": 70}), 6]
    assert second.drops("session-0") == {"disk": 70}
    second.close(5)
    third = start(RecordsSink)
    third.put(records(kernels(7), 6))
    poll_until(lambda: third.safe_seq("session-0") == 6, "another batch")
    assert RecordsSink.committed[3:] == [7]


def test_what_the_agent_sends_again_all_the_same_is_written_and_not_counted(
    start: Start, kernels: Kernels
) -> None:
    """The acknowledgement got lost with the daemon."""
    first = start(RecordsSink)
    RecordsSink.error = SinkError("the disk is full")
    for seq in (2, 3):
        first.put(records(kernels(10), seq))
    leave_behind(first, RecordsSink, 3)
    second = start(RecordsSink)
    for seq in (2, 3, 4):
        second.put(records(kernels(10), seq))
    poll_until(lambda: second.safe_seq("session-0") == 4, "all batches")
    assert RecordsSink.committed == [10, 10, 10]
    assert second.drops("session-0") == {}


def test_lost_windows_are_told_by_an_output_that_knows_of_no_earlier_daemon(
    start: Start, kernels: Kernels
) -> None:
    first = start(WindowsSink)
    WindowsSink.error = SinkError("the disk is full")
    for seq in (2, 3):
        header = WindowHeader(seq, 1, 2, kept={"Kernel": 40 + seq})
        first.put(WindowDelivery("session-0", seq, header, frames_of(Window(seq, 1, 2))))
    leave_behind(first, WindowsSink, 3)
    WindowsSink.committed.clear()
    second = start(WindowsSink)
    second.put(records(kernels(6), 4))
    poll_until(lambda: WindowsSink.committed, "the gap")
    second.close(5)
    third = start(WindowsSink)
    third.put(records(kernels(6), 4))
    poll_until(lambda: third.safe_seq("session-0") == 4, "what came next")
    assert WindowsSink.committed == [("windows", {"Kernel": 85})]
