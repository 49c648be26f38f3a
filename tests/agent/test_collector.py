"""What an unforeseen failure costs: the session at most, never the thread or the job."""

from __future__ import annotations

import queue
from types import SimpleNamespace

import pytest

from msmon.agent import monitoring as monitoring_module
from msmon.agent.agent_log import AgentLog
from msmon.agent.collector import Collector
from msmon.agent.link.pending import PendingCommand
from msmon.agent.link.uplink import Uplink
from msmon.agent.session.session import MonitoringSession
from msmon.agent.steps.counter import StepCounter
from msmon.agent.tracing.pause import MonitorPause
from msmon.bus.messages import Answer
from msmon.ffi.arena import BufferArena
from msmon.recording.lost_records import LostRecords


class PlayedRecorder:
    """A recorder that records nothing."""

    call_in_progress = None
    enabled_kinds = frozenset({2})
    start_ns = 1
    slots_out = 0
    buffers_read = 0
    lost: dict[str, int] = {}  # noqa: RUF012
    problems: list[str] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.abandoned = 0
        self.losses = LostRecords(BufferArena(1, 1 << 16), frozenset())

    def start(self, kinds):
        return {}

    def flush(self):
        pass

    def batches(self, may_take):
        return []

    ending = batches

    def abandon(self):
        self.abandoned += 1


class Commander:
    """Sends commands to a running collector and waits for the answers."""

    def __init__(self, recorder: PlayedRecorder, monkeypatch) -> None:
        monkeypatch.setattr(
            monitoring_module.library, "open_recorder", lambda purpose: (recorder, "played")
        )
        self.answers: queue.Queue[Answer] = queue.Queue()
        self.collector = Collector(
            Uplink(lambda: None),
            StepCounter(),
            AgentLog(None),
            lambda: None,
            lambda _, answer: self.answers.put(answer),
            SimpleNamespace(holder="", cancel=None),
            MonitorPause(lambda: None),
        )
        self.collector.start()

    def __call__(self, action: str, **fields) -> Answer:
        self.collector.submit(PendingCommand("1", action, fields))
        return self.answers.get(timeout=5)


@pytest.fixture
def recorder() -> PlayedRecorder:
    return PlayedRecorder()


@pytest.fixture
def command(recorder, monkeypatch):
    commander = Commander(recorder, monkeypatch)
    yield commander
    commander.collector.shut_down()
    assert commander.collector.join(5)


def fail(*arguments):
    raise ZeroDivisionError("unforeseen")


def test_a_failing_start_is_answered_and_the_next_one_works(command, recorder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(MonitoringSession, "start", fail)
        answer = command("monitor.start", kinds="Kernel")
        assert not answer.ok
        assert "unforeseen" in answer.text
    assert recorder.abandoned == 1
    assert command.collector.state.state == "idle"
    assert command("monitor.start", kinds="Kernel").ok


def test_a_failing_stop_ends_the_session(command, recorder, monkeypatch):
    command("monitor.start", kinds="Kernel")
    with monkeypatch.context() as patch:
        patch.setattr(MonitoringSession, "stop", fail)
        assert not command("monitor.stop").ok
    assert recorder.abandoned == 1
    assert command("monitor.start", kinds="Kernel").ok


def test_a_stop_where_nothing_runs_is_no_failure(command):
    answer = command("monitor.stop")
    assert answer.ok
    assert "nothing to stop" in answer.text


def test_ticks_that_keep_failing_end_the_session(command, recorder, monkeypatch, wait_for):
    monkeypatch.setattr(MonitoringSession, "tick", fail)
    command("monitor.start", kinds="Kernel", report_interval_s=0.1)
    wait_for(lambda: recorder.abandoned, "the end of the session")
    wait_for(lambda: command.collector.state.state == "idle", "idle")
    assert "unforeseen" in command.collector.state.problem
    answer = command("monitor.stop")
    assert not answer.ok
    assert "had ended by itself" in answer.text
    assert "unforeseen" in answer.text
    assert "nothing to stop" in command("monitor.stop").text


def test_one_failing_tick_is_survived(command, recorder, monkeypatch, wait_for):
    failed = []

    def fail_once(session):
        monkeypatch.undo()
        failed.append(session)
        fail()

    monkeypatch.setattr(MonitoringSession, "tick", fail_once)
    command.collector.submit(PendingCommand("1", "monitor.start", {"kinds": "Kernel"}))
    wait_for(lambda: failed, "a failing tick")
    assert command.answers.get(timeout=5).ok
    assert command("monitor.stop").ok
    assert recorder.abandoned == 0
