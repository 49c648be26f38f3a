"""The connection to the daemon: late, lost, back again, and alive while MSPTI blocks."""

from __future__ import annotations

import os
import stat

import numpy as np

from msmon.bus.messages import Goodbye, Hello, Records, Refused, WindowReport
from msmon.records.window_frames import OLDER_OPERATOR_DTYPE

STEADY = """
msmon.init(rank=0)
record_for_ever(KERNEL, 2000)
print("recording", flush=True)
sys.stdin.read()
double.double_stop_recording()
"""


def test_a_daemon_may_come_later_than_the_job(daemon, job):
    daemon.stop()
    os.unlink(daemon.directory / "daemon.sock")
    started = job(STEADY)
    assert started.output() == "recording"
    daemon.start()
    assert daemon.await_hello().process.rank == 0
    assert daemon.command("monitor.start", kinds="Kernel").ok


def test_a_running_session_goes_on_with_a_new_daemon(daemon, job, wait_for):
    job(STEADY)
    daemon.await_hello()
    answer = daemon.command("monitor.start", kinds="Kernel", ship_records=True)
    wait_for(lambda: daemon.records_of(answer.session_id), "records")
    daemon.acknowledging = False
    before = daemon.records_of(answer.session_id)
    wait_for(lambda: daemon.records_of(answer.session_id) > before, "records not acknowledged")
    daemon.stop()
    lost = list(daemon.received)
    daemon.received.clear()
    daemon.acknowledging = True
    daemon.start()
    daemon.await_hello()
    status = daemon.await_status(lambda status: status.state == "monitoring", "monitoring")
    assert status.session_id == answer.session_id
    assert daemon.command("monitor.stop").ok
    closed = daemon.await_closed()
    assert [session.seq for session in daemon.sessions()] == [1]
    numbered = [item.message for item in [*lost, *daemon.received] if hasattr(item.message, "seq")]
    assert {message.seq for message in numbered} == set(range(1, closed.seq + 1))
    by_seq = {item.seq: item.count for item in numbered if isinstance(item, Records)}
    assert sum(by_seq.values()) == closed.end.counts.received["Kernel"]


def test_windows_that_wait_are_sent_to_an_older_daemon_as_it_knows_them(daemon, job, wait_for):
    started = job("""
msmon.init(rank=0)
for line in sys.stdin:
    msmon.step()
    record(COMMUNICATION, 10)
    print("done", flush=True)
""")
    daemon.acknowledging = False
    daemon.await_hello()
    session_id = daemon.command("monitor.start", kinds="Communication").session_id
    for _ in range(3):
        started.line()
        assert started.output() == "done"
    assert daemon.command("monitor.stop").ok
    daemon.await_closed()
    newest = windows(daemon)
    assert {len(envelope.payload) for envelope in newest} == {5}
    assert sum(envelope.message.steps for envelope in newest) == 2
    daemon.stop()
    daemon.received.clear()
    daemon.minor, daemon.acknowledging = 1, True
    daemon.start()
    daemon.await_closed()
    older = windows(daemon)
    assert [envelope.message.session_id for envelope in older] == [session_id] * len(newest)
    for was, now in zip(newest, older):
        assert len(now.payload) == 3
        assert (now.message.steps, now.message.digest_step) == (0, -1)
        assert now.message.kept == was.message.kept
        rows = np.frombuffer(now.payload[0], OLDER_OPERATOR_DTYPE)
        assert rows["count"].sum() == sum(now.message.kept.values())


def windows(daemon) -> list:
    """Return the envelopes of all windows that have come."""
    return [item for item in daemon.received if isinstance(item.message, WindowReport)]


def test_what_is_not_acknowledged_is_sent_again_in_order(daemon, job):
    started = job("""
msmon.init()
for line in sys.stdin:
    record(KERNEL, 10)
    print("done", flush=True)
""")
    daemon.await_hello()
    daemon.acknowledging = False
    daemon.command("monitor.start", kinds="Kernel", ship_records=True)
    started.line()
    assert started.output() == "done"
    daemon.command("monitor.stop")
    seqs = range(1, daemon.await_closed().seq + 1)
    daemon.stop()
    daemon.received.clear()
    daemon.start()
    daemon.await_closed()
    again = [item.message.seq for item in daemon.received if hasattr(item.message, "seq")]
    assert again == list(seqs)


def test_a_call_that_blocks_for_ever_leaves_the_link_alive(daemon, job):
    job(STEADY, MSPTI_DOUBLE_ENABLE_DELAY_MS="-1")
    daemon.await_hello()
    first = daemon.command_later("monitor.start", kinds="Kernel")
    second = daemon.command_later("monitor.stop")
    status = daemon.await_status(lambda status: bool(status.stuck_in), "stuck")
    assert "msptiActivityEnable(Kernel)" in status.stuck_in
    assert status.state == "starting"
    answer = daemon.answer_to(first)
    assert not answer.ok
    assert "has begun" in answer.text
    answer = daemon.answer_to(second)
    assert not answer.ok
    assert "was not carried out" in answer.text
    assert "msptiActivityEnable(Kernel)" in answer.text
    daemon.await_status(lambda status: bool(status.stuck_in), "heartbeats go on")


def test_a_slow_call_is_waited_for(daemon, job):
    job(STEADY, MSPTI_DOUBLE_ENABLE_DELAY_MS="300")
    daemon.await_hello()
    assert daemon.command("monitor.start", kinds="Kernel").ok


def test_a_command_from_a_newer_daemon_is_answered_with_the_field(daemon, job):
    job(STEADY)
    daemon.await_hello()
    daemon.send_fields("command", "c-new", action="monitor.start", fields={}, colour="red")
    answer = daemon.answer_to("c-new")
    assert not answer.ok
    assert "colour" in answer.text


def test_the_end_of_the_job_is_announced(daemon, job, wait_for):
    started = job(STEADY)
    daemon.await_hello()
    daemon.command("monitor.start", kinds="Kernel", ship_records=True)
    assert started.end()[0] == 0
    closed = daemon.await_closed()
    assert closed.end.reason == "exit"
    assert daemon.records_of(closed.session_id) == closed.end.counts.received["Kernel"]
    wait_for(lambda: daemon.of_type(Goodbye), "goodbye")
    assert len(daemon.of_type(Hello)) == 1


def test_the_log_says_once_why_there_is_no_connection(daemon, job, tmp_path, wait_for):
    daemon.stop()
    os.unlink(daemon.directory / "daemon.sock")
    started = job(STEADY)
    assert started.output() == "recording"
    path = tmp_path / "log" / "msmonitor_log" / f"msmon_{started.process.pid}.log"
    wait_for(path.exists, "a log")
    daemon.start()
    daemon.await_hello()
    wait_for(lambda: "connected to the daemon" in path.read_text(), "the connection in the log")
    assert path.read_text().count(str(daemon.directory)) == 1
    assert stat.S_IMODE(path.stat().st_mode) & 0o007 == 0


def test_a_refused_message_does_not_end_the_connection(daemon, job):
    job(STEADY)
    daemon.await_hello()
    daemon.send(Refused("this session makes no sense"))
    assert daemon.command("monitor.start", kinds="Kernel").ok
    assert len(daemon.of_type(Hello)) == 1


LATE_FRAMEWORK = """
import types
msmon.init()
stopped()
sys.modules["torch"] = types.ModuleType("torch")
sys.stdin.read()
"""


def test_a_framework_imported_later_is_told(daemon, job):
    started = job(LATE_FRAMEWORK)
    assert daemon.await_hello().process.framework == ""
    started.line()
    assert daemon.await_hello(2).process.framework == "torch"
    assert daemon.command("monitor.start", kinds="Kernel").ok
