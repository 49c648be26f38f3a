"""Sessions from the first command to the last record, with a real library in a real job."""

from __future__ import annotations

import json

from msmon.agent.link.uplink import KEPT_BYTES
from msmon.bus.messages import (
    Acknowledged,
    GapReport,
    Records,
    SessionNote,
    Status,
    WindowSoFar,
)
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind

RECORDS_ON_DEMAND = """
msmon.init(rank=3)
for line in sys.stdin:
    kind, count = line.split()
    record(int(kind), int(count))
    print("done", flush=True)
"""

STEADY = """
msmon.init(rank=0)
record_for_ever(KERNEL, 1000)
sys.stdin.read()
double.double_stop_recording()
"""


def record(started, kind: ActivityKind, count: int) -> None:
    started.line(f"{int(kind)} {count}")
    assert started.output() == "done"


def test_a_session_delivers_every_record_and_its_windows(daemon, job):
    started = job(RECORDS_ON_DEMAND)
    hello = daemon.await_hello()
    assert hello.role == "agent"
    assert hello.process.rank == 3
    assert hello.process.pid == started.process.pid
    answer = daemon.command("monitor.start", kinds="Kernel,API", ship_records=True)
    assert answer.ok, answer.text
    record(started, ActivityKind.Kernel, 1000)
    record(started, ActivityKind.API, 500)
    assert daemon.command("monitor.stop").ok
    closed = daemon.await_closed()
    assert closed.session_id == answer.session_id
    assert closed.end.reason == "stopped"
    assert closed.end.counts.received == {"Kernel": 1000, "API": 500}
    assert closed.end.counts.drops == {}
    assert daemon.records_of(answer.session_id) == 1500
    windows = daemon.windows_of(answer.session_id)
    assert sum(window.kept.get("Kernel", 0) for window in windows) == 1000
    assert all(window.start_ns < window.end_ns for window in windows)


def test_without_export_only_windows_are_sent(daemon, job):
    started = job(RECORDS_ON_DEMAND)
    daemon.await_hello()
    answer = daemon.command("monitor.start", kinds="Kernel", report_interval_s=0.3)
    record(started, ActivityKind.Kernel, 100)
    daemon.command("monitor.stop")
    daemon.await_closed()
    assert daemon.records_of(answer.session_id) == 0
    windows = daemon.windows_of(answer.session_id)
    assert [window.index for window in windows] == list(range(len(windows)))
    assert sum(window.received.get("Kernel", 0) for window in windows) == 100


def test_the_daemon_hears_each_second_what_the_open_window_holds(daemon, job, wait_for):
    started = job(RECORDS_ON_DEMAND)
    daemon.await_hello()
    session_id = daemon.command("monitor.start", kinds="Kernel", report_interval_s=60.0).session_id
    for total in (100, 300):
        record(started, ActivityKind.Kernel, total - (100 if total > 100 else 0))
        wait_for(
            lambda total=total: (
                [window.kept for window in daemon.of_type(WindowSoFar)][-1:] == [{"Kernel": total}]
            ),
            f"a window with {total} kernels so far",
        )
    told = daemon.of_type(WindowSoFar)
    assert {(window.session_id, window.index) for window in told} == {(session_id, 0)}
    assert daemon.windows_of(session_id) == []
    daemon.command("monitor.stop")
    daemon.await_closed()
    assert [window.kept for window in daemon.windows_of(session_id)] == [{"Kernel": 300}]
    assert daemon.received[-1].message.TYPE != "window-so-far"


def test_an_older_daemon_is_not_told_what_it_would_refuse(daemon, job):
    daemon.minor = 0
    started = job(RECORDS_ON_DEMAND)
    daemon.await_hello()
    daemon.command("monitor.start", kinds="Kernel", report_interval_s=60.0)
    record(started, ActivityKind.Kernel, 100)
    daemon.await_status(lambda status: status.counts.received.get("Kernel") == 100, "the records")
    daemon.await_status(lambda status: status.flush_age_s > 0.5, "another second")
    assert daemon.of_type(WindowSoFar) == []
    daemon.command("monitor.stop")
    assert daemon.await_closed().end.counts.received == {"Kernel": 100}


BURST = """
msmon.init(rank=0)
holding = ctypes.PyDLL(double._name)
stopped()
holding.double_record(ctypes.c_uint32(KERNEL), ctypes.c_uint64(2_000_000))
print("recorded", flush=True)
sys.stdin.read()
"""


def received_at_last(daemon) -> list[int]:
    return [status.counts.received.get("Kernel", 0) for status in daemon.of_type(Status)[-3:]]


def test_a_burst_that_exceeds_the_uplink_waits_in_its_buffers_and_nothing_is_lost(
    daemon, job, wait_for
):
    """The GIL is held meanwhile, so all buffers are full when they are first looked at."""
    started = job(BURST)
    daemon.await_hello()
    session_id = daemon.command("monitor.start", kinds="Kernel", ship_records=True).session_id
    assert 2_000_000 * DTYPES[ActivityKind.Kernel].itemsize > 1.5 * KEPT_BYTES
    daemon.acknowledging = False
    started.line()
    assert started.output() == "recorded"
    wait_for(
        lambda: min(received_at_last(daemon)) == max(received_at_last(daemon)) > 300_000,
        "an uplink that is full",
    )
    assert received_at_last(daemon)[-1] < 2_000_000
    daemon.acknowledging = True
    daemon.send(Acknowledged(session_id, max(item.seq for item in daemon.of_type(Records))))
    wait_for(lambda: received_at_last(daemon)[-1] == 2_000_000, "all records")
    answer = daemon.command("monitor.stop")
    assert "2000000 records recorded = 2000000 sent" in answer.text
    counts = daemon.await_closed().end.counts
    assert (counts.received, counts.drops) == ({"Kernel": 2_000_000}, {})
    assert daemon.records_of(session_id) == 2_000_000
    assert sum(window.kept["Kernel"] for window in daemon.windows_of(session_id)) == 2_000_000


def test_a_filter_keeps_matching_records_only(daemon, job):
    started = job(RECORDS_ON_DEMAND)
    daemon.await_hello()
    answer = daemon.command("monitor.start", filter="Kernel:MatMul", ship_records=True)
    status = daemon.await_status(lambda status: status.settings, "settings")
    assert status.settings.kinds == "Kernel"  # spelled out, though only the filter names it
    record(started, ActivityKind.Kernel, 640)
    daemon.command("monitor.stop")
    closed = daemon.await_closed()
    assert closed.end.counts.received == {"Kernel": 640}
    assert closed.end.counts.kept == {"Kernel": 160}
    assert daemon.records_of(answer.session_id) == 160


def test_kinds_that_the_filter_drops_are_told(daemon, job):
    job(RECORDS_ON_DEMAND)
    daemon.await_hello()
    answer = daemon.command("monitor.start", kinds="Kernel,API,Marker", filter="Kernel:MatMul")
    assert answer.ok
    assert answer.text.endswith("the filter keeps no record of kind Marker,API")
    answer = daemon.command("monitor.update", kinds="Kernel")
    assert "the filter" not in answer.text
    assert "the filter" not in daemon.command("monitor.update", filter="").text


def test_a_duration_shorter_than_the_report_interval_delivers_everything(daemon, job):
    job(STEADY)
    daemon.await_hello()
    answer = daemon.command(
        "monitor.start", kinds="Kernel", duration_s=0.5, report_interval_s=60.0, ship_records=True
    )
    closed = daemon.await_closed()
    assert closed.end.reason == "duration"
    opened = daemon.sessions()[0]
    length_s = (closed.end.end_ns - opened.start_ns) / 1e9
    assert 0.45 < length_s < 1.5
    received = closed.end.counts.received["Kernel"]
    assert received > 200
    assert daemon.records_of(answer.session_id) == received
    assert len(daemon.windows_of(answer.session_id)) == 1
    daemon.await_status(lambda status: status.state == "idle", "idle again")


def test_an_update_changes_only_what_it_mentions(daemon, job):
    job(STEADY)
    daemon.await_hello()
    daemon.command("monitor.start", kinds="Kernel,API", filter="Kernel:MatMul;API:aclnn")
    assert daemon.command("monitor.update", report_interval_s=5.0).ok
    status = daemon.await_status(lambda status: bool(status.settings), "settings")
    assert status.settings.kinds == "Kernel,API"
    assert status.settings.filter == "Kernel:MatMul;API:aclnn"
    assert status.settings.report_interval_s == 5.0
    assert daemon.command("monitor.update", filter="").ok
    status = daemon.await_status(
        lambda status: status.settings and not status.settings.filter, "no filter"
    )
    assert status.settings.kinds == "Kernel,API"
    notes = [note for note in daemon.of_type(SessionNote) if note.key == "settings"]
    assert json.loads(notes[-1].value)["filter"] == ""


def test_kinds_can_change_while_monitoring_runs(daemon, job):
    started = job(RECORDS_ON_DEMAND)
    daemon.await_hello()
    daemon.command("monitor.start", kinds="Kernel")
    record(started, ActivityKind.Kernel, 10)
    assert daemon.command("monitor.update", kinds="API").ok
    record(started, ActivityKind.Kernel, 20)
    record(started, ActivityKind.API, 30)
    daemon.command("monitor.stop")
    assert daemon.await_closed().end.counts.received == {"Kernel": 10, "API": 30}


def test_an_update_whose_filter_keeps_nothing_says_so_and_what_to_do(daemon, job):
    job(STEADY)
    daemon.await_hello()
    daemon.command("monitor.start", kinds="API")
    answer = daemon.command("monitor.update", filter="Kernel:MatMul")
    assert answer.ok
    assert "the filter keeps no record of kind API, so nothing is kept" in answer.text
    assert "--kind" in answer.next_step


def test_an_update_with_a_wrong_value_changes_nothing(daemon, job):
    job(STEADY)
    daemon.await_hello()
    daemon.command("monitor.start", kinds="Kernel")
    answer = daemon.command("monitor.update", report_interval_s=-1.0)
    assert not answer.ok
    assert "--report-interval-s" in answer.text
    answer = daemon.command("monitor.update", log_file="/elsewhere")
    assert not answer.ok
    assert "--log-file" in answer.text
    status = daemon.await_status(lambda status: True, "a status")
    assert status.settings.report_interval_s == 60.0


def test_an_update_to_kinds_that_are_all_refused_changes_nothing(daemon, job):
    started = job(RECORDS_ON_DEMAND)
    daemon.await_hello()
    daemon.command("monitor.start", kinds="Kernel")
    answer = daemon.command("monitor.update", kinds="MemCpy,MemSet", report_interval_s=5.0)
    assert not answer.ok
    assert "LD_PRELOAD" in answer.next_step
    record(started, ActivityKind.Kernel, 5)
    status = daemon.await_status(lambda status: status.state == "monitoring", "a status")
    assert (status.settings.kinds, status.settings.report_interval_s) == ("Kernel", 60.0)
    assert not status.unavailable_kinds
    daemon.command("monitor.stop")
    assert daemon.await_closed().end.counts.received == {"Kernel": 5}


def test_records_of_one_session_never_reach_the_next(daemon, job):
    started = job(RECORDS_ON_DEMAND)
    daemon.await_hello()
    daemon.command("monitor.start", kinds="Kernel", ship_records=True)
    record(started, ActivityKind.Kernel, 100)
    daemon.command("monitor.stop")
    record(started, ActivityKind.Kernel, 1000)
    second = daemon.command("monitor.start", kinds="Kernel", ship_records=True)
    record(started, ActivityKind.Kernel, 7)
    daemon.command("monitor.stop")
    assert daemon.await_closed(2).end.counts.received == {"Kernel": 7}
    assert daemon.records_of(second.session_id) == 7


def test_a_kind_that_needs_a_preload_does_not_stop_the_others(daemon, job):
    started = job(RECORDS_ON_DEMAND)
    daemon.await_hello()
    answer = daemon.command("monitor.start", kinds="Kernel,MemCpy")
    assert answer.ok
    assert answer.text.startswith("monitoring started: Kernel; MemCpy is unavailable: ")
    assert "LD_PRELOAD" in answer.text
    record(started, ActivityKind.Kernel, 5)
    status = daemon.await_status(lambda status: bool(status.unavailable_kinds), "the kind")
    assert list(status.unavailable_kinds) == ["MemCpy"]
    daemon.command("monitor.stop")
    assert daemon.await_closed().end.counts.received == {"Kernel": 5}


def test_a_session_without_any_available_kind_is_refused(daemon, job):
    job(RECORDS_ON_DEMAND)
    daemon.await_hello()
    answer = daemon.command("monitor.start", kinds="MemCpy")
    assert not answer.ok
    assert "LD_PRELOAD" in answer.next_step
    assert daemon.sessions() == []
    assert daemon.command("monitor.start", kinds="Kernel").ok


def test_a_second_start_is_refused_and_the_session_goes_on(daemon, job):
    started = job(RECORDS_ON_DEMAND)
    daemon.await_hello()
    first = daemon.command("monitor.start", kinds="Kernel")
    second = daemon.command("monitor.start", kinds="API")
    assert not second.ok
    assert first.session_id in second.text
    record(started, ActivityKind.Kernel, 3)
    daemon.command("monitor.stop")
    assert daemon.await_closed().end.counts.received == {"Kernel": 3}


ANOTHER_PROFILER = """
msmon.init()
holder = ctypes.c_void_p()
double.msptiSubscribe(ctypes.byref(holder), None, None)
stopped()
double.msptiUnsubscribe(holder)
print("released", flush=True)
sys.stdin.read()
"""


def test_a_subscription_held_by_another_profiler_is_the_reason_of_the_refusal(daemon, job):
    started = job(ANOTHER_PROFILER)
    daemon.await_hello()
    answer = daemon.command("monitor.start", kinds="Kernel")
    assert not answer.ok
    assert "msptiSubscribe" in answer.text
    assert "profiler" in answer.next_step
    status = daemon.await_status(lambda status: bool(status.problem), "the problem")
    assert status.state == "idle"
    started.line()
    assert started.output() == "released"
    assert daemon.command("monitor.start", kinds="Kernel").ok
    assert daemon.await_status(lambda status: status.state == "monitoring", "start").problem == ""


def test_commands_out_of_place_are_refused(daemon, job):
    job(RECORDS_ON_DEMAND)
    daemon.await_hello()
    assert "does not run" in daemon.command("monitor.stop").text
    assert "does not run" in daemon.command("monitor.update", filter="").text
    assert "unknown command" in daemon.command("monitor.dance").text
    assert "unknown option" in daemon.command("monitor.start", colour="red").text


def test_steps_are_counted(daemon, job):
    started = job("msmon.init()\nfor line in sys.stdin:\n    msmon.step()\n")
    status = daemon.await_status(lambda status: True, "a status")
    assert (status.step, status.step_age_s) == (-1, -1.0)
    started.line()
    started.line()
    status = daemon.await_status(lambda status: status.step == 2, "step 2")
    assert 0 <= status.step_age_s < 5


def test_without_the_delivery_thread_nothing_is_lost(daemon, job):
    job(STEADY, MSPTI_DOUBLE_NO_MANAGER="1")
    daemon.await_hello()
    daemon.command("monitor.start", kinds="Kernel", report_interval_s=60.0)
    status = daemon.await_status(
        lambda status: status.counts.received.get("Kernel", 0) > 1500, "records before a window"
    )
    assert not any(status.counts.drops.values())


HOLDS_THE_GIL = """
msmon.init(rank=0)
holding = ctypes.PyDLL(double._name)
stopped()
record_for_ever(API, 100000)
end = time.monotonic() + 1.0
longest = count = 0
while time.monotonic() < end:
    start = time.monotonic()
    holding.double_record(ctypes.c_uint32(KERNEL), ctypes.c_uint64(2000))
    count += 2000
    longest = max(longest, time.monotonic() - start)
double.double_stop_recording()
print(count, longest, flush=True)
sys.stdin.read()
"""


def test_recording_with_the_gil_held_never_stalls_and_every_record_is_counted(daemon, job):
    started = job(HOLDS_THE_GIL)
    daemon.await_hello()
    assert daemon.command("monitor.start", kinds="Kernel,API").ok
    started.line()
    count, longest_s = started.output().split()
    assert float(longest_s) < 1.0
    daemon.command("monitor.stop")
    counts = daemon.await_closed().end.counts
    if not counts.drops:
        assert counts.received["Kernel"] == int(count)
    assert counts.received["API"] > 0


OVERLOAD = """
msmon.init(rank=0)
holding = ctypes.PyDLL(double._name)
stopped()
holding.double_record(ctypes.c_uint32(KERNEL), ctypes.c_uint64(6_000_000))
print("recorded", flush=True)
sys.stdin.read()
"""


def test_what_finds_no_free_buffer_is_counted_to_the_last_record(daemon, job):
    """The GIL is held all the while, so that nothing can be read."""
    started = job(OVERLOAD)
    daemon.await_hello()
    session_id = daemon.command("monitor.start", kinds="Kernel").session_id
    started.line()
    assert started.output() == "recorded"
    daemon.command("monitor.stop")
    counts = daemon.await_closed().end.counts
    dropped = counts.drops["slots"]
    assert dropped > 0
    assert counts.received["Kernel"] + dropped == 6_000_000
    gaps = [gap.gap for gap in daemon.of_type(GapReport) if gap.session_id == session_id]
    assert sum(gap.records["Kernel"] for gap in gaps) == dropped
    assert {gap.stage for gap in gaps} == {"slots"}
