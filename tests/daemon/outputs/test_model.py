"""Sinks, outputs and streams under random faults: each record is written once, or counted.

A scripted agent sends records and windows of its sessions and remembers what was acknowledged. Two
outputs of records and one of windows take them. At random their sinks fail, hang, lose the answer
to a commit; the process falls silent and comes back; the daemon ends or is killed and starts again.
At the end everything works again, and all is compared with what was sent.

``MSMON_MODEL_EXAMPLES=1000`` tries more than a test run has time for.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import pytest
from fixtures.sink_input import make_kernels
from fixtures.waiting import poll_until
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from msmon.bus.messages import Records, SessionClosed, SessionOpened, WindowReport
from msmon.daemon.access.approvals import Approvals
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.access.shares import Shares
from msmon.daemon.outputs import lag, output, writer
from msmon.daemon.outputs.hosts import HostEnded
from msmon.daemon.outputs.output import Output
from msmon.daemon.outputs.outputs import Outputs, OutputsConfig
from msmon.daemon.outputs.stored_progress import ProgressDirectory
from msmon.daemon.process import Life, Process
from msmon.daemon.recent.recent_windows import RecentWindows
from msmon.daemon.streams.streams import Streams
from msmon.errors import SinkError
from msmon.records.batch import Batch
from msmon.records.window_frames import frames_of
from msmon.records.windows import Window
from msmon.sessions import DropStage, Gap, MonitorSettings, ProcessInfo, SessionEnd, SessionInfo
from msmon.sinks.base import CommitFailed, Progress, ResumableSink, SessionOutput, Sink

PHASES = (Phase.explicit, Phase.generate)
EXAMPLES = int(os.environ.get("MSMON_MODEL_EXAMPLES", "12"))
STEPS = 25
GRACE_S = 10.0
QUEUE_BYTES = 60_000
"""A quarter of it is what one owner may have waiting: some ten batches."""

OPERATOR = Peer(Role.OPERATOR, "uid 0", "uid 0", 0)
OUR_LOSSES = (DropStage.DISK, DropStage.SINK)


@dataclass
class File:
    """What a disk holds of one session."""

    seq: int = 0
    records: list[tuple[int, int]] = field(default_factory=list)
    """Number of each message whose records are there, and how many they are."""
    lost: int = 0
    """Records that gaps tell of."""
    unknown: bool = False
    """A gap tells of records without a number."""
    windows: Counter[int] = field(default_factory=Counter)


class Disk:
    """Files that outlive the daemon, and what goes wrong with them. ``power`` is the daemon's life:
    a sink of an earlier one can't write any more."""

    def __init__(self) -> None:
        self.files: defaultdict[str, File] = defaultdict(File)
        self.lock = threading.Lock()
        self.power = 0
        self.failing: set[str] = set()
        """Names of methods that fail."""
        self.gate = threading.Event()
        self.gate.set()

    def heal(self) -> None:
        self.failing.clear()
        self.gate.set()

    def meet(self, method: str) -> None:
        self.gate.wait(30)
        if method in self.failing:
            raise SinkError(f"{method} fails")


Taken = tuple[str, int, Any]
"""What a sink took: the kind of message, its number, and what it held."""


class _DiskSink(Sink):
    """Keeps what it takes of each session, and puts it on its disk with a commit."""

    NAME = "disk"
    HELP = "for tests"
    disk: Disk

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._taken: dict[str, list[Taken]] = {}
        self._power = self.disk.power

    def _open(self, session: SessionInfo) -> SessionOutput:
        self.disk.meet("open")
        self._taken[session.session_id] = []
        return SessionOutput(("/file",), self.disk.files[session.session_id].seq)

    def _take(self, session_id: str, kind: str, seq: int, value: Any = None) -> None:
        self.disk.meet("write")
        self._taken[session_id].append((kind, seq, value))

    def write_records(self, session_id: str, seq: int, batch: Batch) -> None:
        self._take(session_id, "records", seq, len(batch))

    def write_window(self, session_id: str, seq: int, window: Window) -> None:
        self._take(session_id, "window", seq)

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        self._take(session_id, "gap", seq, gap)

    def pass_over(self, session_id: str, seq: int) -> None:
        self._take(session_id, "place", seq)

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        self._take(session_id, "end", seq)

    def commit(self) -> None:
        self.disk.meet("commit")
        failed = {}
        for number, (session_id, taken) in enumerate(self._taken.items()):
            if taken and number == 0 and "commit of one" in self.disk.failing:
                failed[session_id] = "this session fails"
                continue
            with self.disk.lock:
                if self._power != self.disk.power:
                    raise SinkError("the daemon was killed")
                self._write(self.disk.files[session_id], taken)
            taken.clear()
        if failed:
            raise CommitFailed(failed)
        if "answer" in self.disk.failing:
            raise HostEnded("the answer to the commit was lost")

    def _write(self, file: File, taken: list[Taken]) -> None:
        for kind, seq, value in taken:
            file.seq = max(file.seq, seq)
            if kind == "records":
                file.records.append((seq, value))
            elif kind == "window":
                file.windows[seq] += 1
            elif kind == "gap" and value.stage in OUR_LOSSES:
                file.unknown |= value.records is None
                file.lost += sum((value.records or {}).values())


class RecordsSink(_DiskSink, ResumableSink):
    WANTS_RECORDS = True
    WANTS_WINDOWS = False

    def open_session(
        self, session: SessionInfo, progress: Optional[Progress] = None
    ) -> SessionOutput:
        return self._open(session)


class WindowsSink(_DiskSink):
    def open_session(self, session: SessionInfo) -> SessionOutput:
        self._open(session)
        return SessionOutput()


class Daemon:
    """Streams and outputs of one life of the daemon. The test's thread is its loop."""

    def __init__(self, directory: Path, disks: dict[str, Disk], acknowledge: Any) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.of_disk: dict[str, Output] = {}
        for name, disk in disks.items():
            base = WindowsSink if name == "windows" else RecordsSink
            sink = type(name, (base,), {"NAME": name, "disk": disk})
            progress = ProgressDirectory(directory / "state", name)
            self.of_disk[name] = Output(sink, {}, queue_bytes=QUEUE_BYTES, progress=progress)
        config = OutputsConfig(tuple(self.of_disk.values()))
        self.outputs = Outputs(
            config, lambda session, seq: self._calls.put(lambda: self._safe(session, seq))
        )
        self.streams = Streams(
            self.outputs,
            Approvals(directory),
            acknowledge,
            self._calls.put,
            GRACE_S,
            600.0,
            RecentWindows(Shares()),
        )

    def _safe(self, session_id: str, seq: int) -> None:
        self.streams.committed(session_id, seq)

    def turn(self) -> None:
        """Do what the outputs have left for the loop."""
        while True:
            try:
                self._calls.get_nowait()()
            except queue.Empty:
                return


@dataclass
class Session:
    """What the agent knows of one of its sessions. Messages are numbered from 1."""

    id: str
    messages: list[Any] = field(default_factory=list)
    payloads: list[tuple[bytes, ...]] = field(default_factory=list)
    acknowledged: int = 0
    closed: bool = False
    interrupted: bool = False
    """A daemon ended during it, perhaps with something that only it held."""

    def records(self) -> dict[int, int]:
        return {item.seq: item.count for item in self.messages if isinstance(item, Records)}

    def windows(self) -> set[int]:
        return {item.seq for item in self.messages if isinstance(item, WindowReport)}


class Faults(RuleBasedStateMachine):
    directory: Path

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(dir=self.directory))
        self.disks = {name: Disk() for name in ("first", "second", "windows")}
        self.sessions: list[Session] = []
        self.process = Process(ProcessInfo("node", 11, 1), OPERATOR, b"r", "1", 0.0)
        self.now_s = time.monotonic()
        self._start()
        self.open_session()

    # --- the agent ------------------------------------------------------------------------

    @precondition(lambda self: len(self.sessions) < 3)
    @rule()
    def open_session(self) -> None:
        session = Session(f"session-{len(self.sessions)}")
        self.sessions.append(session)
        self._send(session, SessionOpened(session.id, 1, MonitorSettings(), 5))

    @rule(count=st.integers(1, 20), times=st.integers(1, 4), which=st.integers(0, 2))
    def send_records(self, count: int, times: int, which: int) -> None:
        session = self._running(which)
        batch = make_kernels(count, name_count=2)
        for _ in range(times if session else 0):
            message = Records(session.id, self._seq(session), int(batch.kind), count)
            self._send(session, message, tuple(batch.to_frames()))

    @rule(which=st.integers(0, 2))
    def send_window(self, which: int) -> None:
        session = self._running(which)
        if session is not None:
            seq = self._seq(session)
            report = WindowReport(session.id, seq, seq, 1, 2, kept={"Kernel": 1})
            self._send(session, report, frames_of(Window(seq, 1, 2)))

    @rule(which=st.integers(0, 2))
    def end_session(self, which: int) -> None:
        session = self._running(which)
        if session is not None:
            session.closed = True
            end = SessionEnd(9, "stopped")
            self._send(session, SessionClosed(session.id, self._seq(session), end))

    @rule()
    def fall_silent_and_come_back(self) -> None:
        self.process.life, self.process.gone_s = Life.LOST, self.now_s
        self.now_s += GRACE_S + 1
        self.daemon.streams.expire(self.now_s)
        self.process.life = Life.LIVE

    # --- faults ---------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(["first", "second", "windows"]),
        method=st.sampled_from(["open", "write", "commit", "commit of one", "answer"]),
    )
    def fail(self, name: str, method: str) -> None:
        self.disks[name].failing.add(method)

    @rule(name=st.sampled_from(["first", "second", "windows"]))
    def hang(self, name: str) -> None:
        self.disks[name].gate.clear()

    @rule(name=st.sampled_from(["first", "second", "windows"]))
    def heal(self, name: str) -> None:
        self.disks[name].heal()

    @rule()
    def time_passes(self) -> None:
        """Enough for the daemon to leave an output behind."""
        for _ in range(3):
            time.sleep(0.01)
            self.now_s += lag.HOLD_UP_S
            self.daemon.streams.expire(self.now_s)
            self.daemon.turn()

    @rule()
    def a_moment_passes(self) -> None:
        time.sleep(0.05)
        self.daemon.turn()

    @rule(killed=st.booleans())
    def restart_the_daemon(self, killed: bool) -> None:
        if killed:
            self._cut_power()
        for disk in self.disks.values():
            disk.gate.set()
        self.daemon.outputs.close(0.0 if killed else 0.2)
        if not killed:
            self.daemon.turn()
            self._cut_power()
        for session in self.sessions:
            session.interrupted = True
        self._start()
        for session in self.sessions:
            self._send_again(session)

    # --- checks ---------------------------------------------------------------------------

    def teardown(self) -> None:
        for disk in self.disks.values():
            disk.heal()
        for session in self.sessions:
            if not session.closed:
                session.closed = True
                end = SessionEnd(9, "stopped")
                self._send(session, SessionClosed(session.id, self._seq(session), end))
        try:
            poll_until(self._all_is_written, "all is written")
            for session in self.sessions:
                for name in ("first", "second"):
                    self._check_records(session, name)
                self._check_windows(session)
        finally:
            self.daemon.outputs.close(2.0)

    def _all_is_written(self) -> bool:
        self.daemon.turn()
        heard = all(item.acknowledged >= len(item.messages) for item in self.sessions)
        rows = [item.status() for item in self.daemon.of_disk.values()]
        return heard and not any(row.queue_bytes or row.problem for row in rows)

    def _check_records(self, session: Session, name: str) -> None:
        file, sent = self.disks[name].files[session.id], session.records()
        seqs = [seq for seq, _ in file.records]
        assert len(seqs) == len(set(seqs)), "a message is there twice"
        lost = sum(sent.values()) - sum(count for _, count in file.records)
        drops = self.daemon.of_disk[name].drops(session.id)
        if not session.interrupted:
            assert lost == sum(drops.values()), f"lost {lost}, counted {drops}"
        if file.unknown:
            assert session.interrupted
            assert lost >= file.lost
        elif self.daemon.of_disk[name].files(session.id):
            assert lost == file.lost, f"lost {lost}, in gaps {file.lost}, dropped {drops}"

    def _check_windows(self, session: Session) -> None:
        file = self.disks["windows"].files[session.id]
        if session.interrupted:
            return
        assert set(file.windows.values()) <= {1}
        missing = session.windows() - set(file.windows)
        drops = self.daemon.of_disk["windows"].drops(session.id)
        assert len(missing) == drops.get(DropStage.WINDOWS, 0)

    # --- parts ----------------------------------------------------------------------------

    def _start(self) -> None:
        self.daemon = Daemon(self.place, self.disks, self._acknowledge)

    def _cut_power(self) -> None:
        for disk in self.disks.values():
            with disk.lock:
                disk.power += 1

    def _acknowledge(self, process: Process, session_id: str, seq: int) -> None:
        session = next(item for item in self.sessions if item.id == session_id)
        session.acknowledged = max(session.acknowledged, seq)
        for name in ("first", "second"):
            with self.disks[name].lock:
                file = self.disks[name].files[session_id]
                written = {seq for seq, _ in file.records}
                told, unknown = file.lost, file.unknown
            missing = sum(
                count
                for number, count in session.records().items()
                if number <= session.acknowledged and number not in written
            )
            drops = self.daemon.of_disk[name].drops(session_id)
            counted = sum(count or 0 for count in drops.values())
            unknown |= None in drops.values() or session.interrupted
            assert unknown or missing <= max(told, counted), (
                "acknowledged, not written, not counted"
            )

    def _send_again(self, session: Session) -> None:
        """Send what an agent sends over a new connection: the opening, and what is not safe."""
        said = list(zip(session.messages, session.payloads))
        unheard = [item for item in said[1:] if item[0].seq > session.acknowledged]
        if session.closed and not unheard:
            return  # the agent has forgotten it
        for message, payload in [said[0], *unheard]:
            self.daemon.streams.take(self.process, message, payload)

    def _seq(self, session: Session) -> int:
        return len(session.messages) + 1

    def _running(self, which: int) -> Optional[Session]:
        running = [item for item in self.sessions if not item.closed]
        return running[which % len(running)] if running else None

    def _send(self, session: Session, message: Any, payload: tuple[bytes, ...] = ()) -> None:
        session.messages.append(message)
        session.payloads.append(payload)
        self.daemon.streams.take(self.process, message, payload)
        self.daemon.turn()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "HEAVY_BYTES", 3_000)
    for module in (lag, output, writer):
        for name, value in {
            "FIRST_RETRY_S": 0.002,
            "LAST_RETRY_S": 0.01,
            "HUNG_RETRY_S": 0.01,
            "LAST_HUNG_RETRY_S": 0.02,
            "COMMIT_INTERVAL_S": 0.005,
            "GIVE_UP_AFTER_S": 0.2,
        }.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


def test_each_record_is_written_once_or_counted_whatever_happens(
    quick: None, tmp_path: Path
) -> None:
    Faults.directory = tmp_path
    run_state_machine_as_test(
        Faults,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
        ),
    )
