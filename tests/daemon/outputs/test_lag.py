"""An output that fails, hangs or is slow costs the other outputs of its sessions little."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.waiting import poll_until

from msmon.daemon.access.owners import Owner
from msmon.daemon.outputs import lag, session_queue
from msmon.daemon.outputs.delivery import BatchDelivery, Closing, WindowDelivery
from msmon.daemon.outputs.hosts import HostEnded
from msmon.daemon.outputs.output import Output
from msmon.daemon.outputs.outputs import Outputs, OutputsConfig
from msmon.errors import SinkError
from msmon.records.batch import Batch
from msmon.records.window_header import WindowHeader
from msmon.sessions import Gap, SessionEnd, SessionInfo
from msmon.sinks.base import SessionOutput, Sink

OWN = Owner("uid 0", 0)
RECORDS = 10


class RecordsSink(Sink):
    """Holds the records that it committed; ``gate`` and ``error`` make it hang and fail."""

    NAME = "records"
    HELP = "for tests"
    WANTS_RECORDS = True
    WANTS_WINDOWS = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.committed: list[Any] = []
        self._taken: list[Any] = []

    def open_session(self, session: SessionInfo) -> SessionOutput:
        self._taken = []
        return SessionOutput()

    def write_records(self, session_id: str, seq: int, batch: Batch) -> None:
        self._taken.append((seq, len(batch)))

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        self._taken.append(gap)

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        self._taken.append(end)

    def commit(self) -> None:
        self.gate.wait(20)
        if self.error is not None:
            raise self.error
        self.committed += self._taken
        self._taken = []


class HealthySink(RecordsSink):
    NAME = "healthy"


class WindowsSink(RecordsSink):
    NAME = "windows"
    WANTS_RECORDS = False
    WANTS_WINDOWS = True


class Setting:
    """A session in two outputs, of which one is going to make trouble."""

    def __init__(self, session: SessionInfo, *sinks: type[RecordsSink]) -> None:
        self.acknowledged = 0
        self._sinks: dict[str, RecordsSink] = {}
        made = [self._output(sink) for sink in sinks]
        self.outputs = Outputs(OutputsConfig(tuple(made)), self._commit)
        self.outputs.open_session(session, OWN, lambda answer: None)
        self._session_id = session.session_id
        self._now_s = time.monotonic()

    def _output(self, sink: type[RecordsSink]) -> Output:
        def make(**options: Any) -> RecordsSink:
            self._sinks[sink.NAME] = sink(**options)
            return self._sinks[sink.NAME]

        catching = type(sink.__name__, (sink,), {"__new__": lambda cls, **options: make(**options)})
        return Output(catching, {})

    def __getitem__(self, name: str) -> RecordsSink:
        return self._sinks[name]

    def _commit(self, session_id: str, seq: int) -> None:
        self.acknowledged = max(self.acknowledged, seq)

    def put(self, batch: Batch, *seqs: int) -> None:
        for seq in seqs:
            frames = tuple(batch.to_frames())
            self.outputs.put(
                BatchDelivery(self._session_id, seq, int(batch.kind), len(batch), frames)
            )

    def end(self, seq: int) -> None:
        self.outputs.put(Closing(self._session_id, seq, SessionEnd(9, "stop")))

    def let_pass(self, seconds: float) -> None:
        """Have the outputs look at who is behind, now and after some time."""
        for after_s in (0.0, 0.0, seconds):
            self._now_s += after_s
            self.outputs.check(self._now_s)

    @property
    def drops(self) -> dict[Any, Any]:
        return self.outputs.drops(self._session_id)

    @property
    def problem(self) -> str:
        return self.outputs.problem(self._session_id)


@pytest.fixture
def make(session: Any) -> Iterator[Callable[..., Setting]]:
    made: list[Setting] = []

    def setting(*sinks: type[RecordsSink]) -> Setting:
        made.append(Setting(session(Path("/nowhere"), log_file=""), *sinks))
        return made[-1]

    yield setting
    for item in made:
        for sink in item._sinks.values():
            sink.error = None
            sink.gate.set()
        item.outputs.close(5)


@pytest.fixture
def little_is_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "HEAVY_BYTES", 1)


def hang(sink: RecordsSink) -> None:
    sink.gate.clear()


def fail(sink: RecordsSink) -> None:
    sink.error = SinkError("the disk is full")


def work(sink: RecordsSink) -> None:
    sink.error = None
    sink.gate.set()


@pytest.mark.parametrize("trouble", [hang, fail])
def test_what_an_output_in_trouble_keeps_is_counted_until_it_is_written(
    make: Any, kernels: Any, little_is_heavy: None, trouble: Callable[[RecordsSink], None]
) -> None:
    setting = make(RecordsSink, HealthySink)
    trouble(setting["records"])
    setting.put(kernels(RECORDS), 2, 3, 4)
    poll_until(lambda: len(setting["healthy"].committed) == 3, "the healthy output")
    setting.let_pass(lag.HOLD_UP_S - 1)
    assert (setting.acknowledged, setting.drops) == (0, {})
    setting.let_pass(2)
    assert (setting.acknowledged, setting.drops) == (4, {"disk": 3 * RECORDS})
    setting.put(kernels(RECORDS), 5)
    poll_until(lambda: setting.acknowledged == 5, "the next acknowledgement")
    assert setting.drops == {"disk": 4 * RECORDS}
    work(setting["records"])
    poll_until(lambda: setting.drops == {}, "nothing to be lost")
    assert setting["records"].committed == [(seq, RECORDS) for seq in (2, 3, 4, 5)]
    hang(setting["records"])
    setting.put(kernels(RECORDS), 6)
    poll_until(lambda: len(setting["healthy"].committed) == 5, "the healthy output")
    setting.let_pass(0)
    assert setting.acknowledged == 5  # it is waited for again


def test_an_output_is_waited_for_as_long_as_the_agent_goes_on_to_send(
    make: Any, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the agent still keeps outlives the daemon as well."""
    batch = kernels(RECORDS)
    monkeypatch.setattr(lag, "HEAVY_BYTES", 3 * sum(map(len, batch.to_frames())))
    setting = make(RecordsSink, WindowsSink)
    hang(setting["records"])
    setting.put(batch, 2)
    setting.let_pass(100)
    assert setting.acknowledged == 0
    setting.put(batch, 3, 4)
    poll_until(lambda: setting.outputs.status()[1].queue_bytes == 0, "the healthy output")
    setting.let_pass(lag.HOLD_UP_S + 1)
    assert (setting.acknowledged, setting.drops) == (4, {"disk": 3 * RECORDS})


def test_the_only_output_of_a_session_is_waited_for(
    make: Any, kernels: Any, little_is_heavy: None
) -> None:
    setting = make(RecordsSink)
    fail(setting["records"])
    setting.put(kernels(RECORDS), 2)
    poll_until(lambda: setting.problem, "the failure")
    setting.let_pass(100)
    assert (setting.acknowledged, setting.drops) == (0, {})


def test_what_was_left_behind_at_the_end_of_the_daemon_stays_counted(
    make: Any, kernels: Any, little_is_heavy: None, caplog: pytest.LogCaptureFixture
) -> None:
    setting = make(RecordsSink, HealthySink)
    fail(setting["records"])
    setting.put(kernels(RECORDS), 2)
    poll_until(lambda: len(setting["healthy"].committed) == 1, "the healthy output")
    setting.let_pass(100)
    setting.outputs.close(0.3)
    assert setting.drops == {"disk": RECORDS}
    assert "ends before all is written" in caplog.text
    assert f"'disk': {RECORDS}" in caplog.text.replace("<DropStage.DISK: 'disk'>", "'disk'")


def test_a_hang_is_told_by_the_problem_of_the_output(
    make: Any, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_queue, "HOLD_UP_S", 0.05)
    setting = make(RecordsSink)
    hang(setting["records"])
    setting.put(kernels(RECORDS), 2)
    poll_until(lambda: "has not answered for" in setting.problem, "the problem")
    work(setting["records"])
    poll_until(lambda: not setting.problem, "no problem")


class HangingTogether(RecordsSink):
    """Its commit hangs, and is ended, whenever the session "hanging" takes part in it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._part: set[str] = set()

    def write_records(self, session_id: str, seq: int, batch: Batch) -> None:
        self._part.add(session_id)

    def commit(self) -> None:
        part, self._part = self._part, set()
        if "hanging" in part:
            raise HostEnded("did not answer for 30 s and was ended", hung=True)
        self.committed += sorted(part)


def test_a_session_whose_commit_hangs_does_not_keep_the_others_of_its_output_from_theirs(
    make: Any, kernels: Any, session: Any
) -> None:
    setting = make(HangingTogether)
    for name in ("hanging", "other"):
        named = dataclasses.replace(session(Path("/nowhere"), log_file=""), session_id=name)
        setting.outputs.open_session(named, OWN, lambda answer: None)
    batch = kernels(RECORDS)
    for name in ("hanging", "other"):
        frames = tuple(batch.to_frames())
        setting.outputs.put(BatchDelivery(name, 2, int(batch.kind), RECORDS, frames))
    poll_until(lambda: "other" in setting["records"].committed, "the other session")
    assert "did not answer" in setting.outputs.problem("hanging")
    assert setting.outputs.problem("other") == ""


def test_lost_windows_are_counted_apart_with_the_records_in_them(make: Any) -> None:
    setting = make(WindowsSink)
    hang(setting["windows"])
    header = WindowHeader(0, 1, 2, kept={"Kernel": 7})
    large = bytes(session_queue.QUEUE_BYTES // 4)
    for seq in (2, 3, 4):
        setting.outputs.put(WindowDelivery("session-0", seq, header, (large, b"", b"")))
    assert setting.drops["windows"] >= 7
