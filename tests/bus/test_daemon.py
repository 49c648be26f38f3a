"""A real daemon: who it lists, what it answers, and what it survives."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from msmon.bus.messages import (
    Answer,
    Command,
    Goodbye,
    Records,
    Refused,
    SessionClosed,
    Status,
    VersionRequest,
    WindowReport,
)
from msmon.kinds import ActivityKind
from msmon.records import DTYPES, Batch
from msmon.sessions import SessionEnd
from msmon.windows import BUCKET_DTYPE, OPERATOR_DTYPE, encode_texts

KERNEL = int(ActivityKind.Kernel)


def batch(count: int = 1) -> tuple[bytes, bytes]:
    records = np.zeros(count, DTYPES[ActivityKind.Kernel])
    records["kind"] = KERNEL
    records["start_ns"], records["end_ns"] = 1_000, 2_000
    records["name"] = 1
    return Batch(ActivityKind.Kernel, records, ("", "MatMul")).to_frames()


def window(session_id: str, seq: int) -> tuple[WindowReport, tuple[bytes, ...]]:
    payload = (
        np.zeros(0, OPERATOR_DTYPE).tobytes(),
        np.zeros(0, BUCKET_DTYPE).tobytes(),
        encode_texts(("",)),
    )
    return WindowReport(session_id, seq, seq, 1, 2), payload


def test_a_registered_process_is_listed_with_what_it_reports(daemon, agent):
    daemon.start()
    one = agent(11, rank=3, local_rank=1, device=5, job_id="123_4", framework="PyTorch")
    one.status = Status("monitoring", step=42, session_id="s", cpu_s=0.5)
    rows = [row for row in daemon.rows() if row["state"] == "monitoring"] or [
        wait_for_state(daemon, 11, "monitoring")
    ]
    (row,) = rows
    expected = {
        "host": "node",
        "pid": 11,
        "rank": 3,
        "local_rank": 1,
        "device": 5,
        "job_id": "123_4",
        "framework": "PyTorch",
        "step": 42,
        "cpu_s": 0.5,
        "uid": os.geteuid(),
    }
    assert expected.items() <= row.items()
    assert row["last_seen_s"] < 1


def wait_for_state(daemon, pid: int, state: str) -> dict:
    end_s = time.monotonic() + 8
    while time.monotonic() < end_s:
        row = daemon.row(pid)
        if row.get("state") == state:
            return row
        time.sleep(0.02)
    raise AssertionError(f"process {pid} is {row.get('state')}, not {state}")


def test_a_command_reaches_every_process_and_each_answers(daemon, agent):
    daemon.start()
    first, second = agent(11, rank=0), agent(12, rank=1)
    second.answers["monitor.start"] = Answer(False, "already monitoring in session s7", "stop it")
    reply = daemon.command("start", {"filter": "Kernel:MatMul", "report_interval_s": 1})
    assert reply.outcome == "partial"
    assert [(row["rank"], row["ok"], row["text"]) for row in reply.rows] == [
        (0, True, "done"),
        (1, False, "already monitoring in session s7"),
    ]
    (command,) = first.got(Command)
    assert command.fields == {
        "filter": "Kernel:MatMul",
        "report_interval_s": 1.0,
        "ship_records": False,
    }


def test_only_what_was_mentioned_is_sent_on_update(daemon, agent):
    daemon.start()
    one = agent(11)
    assert daemon.command("update", {"report_interval_s": 5}).outcome == "ok"
    assert one.got(Command)[-1].fields == {"report_interval_s": 5.0}
    assert daemon.command("update", {"filter": ""}).outcome == "ok"
    assert one.got(Command)[-1].fields == {"filter": ""}


@pytest.mark.parametrize(
    ("action", "fields", "named"),
    [
        ("start", {"colour": 1}, "colour"),
        ("start", {"ship_records": True}, "ship_records"),
        ("start", {"report_interval_s": -1}, "--report-interval-s"),
        ("start", {"filter": "Kernel"}, "no colon"),
        ("stop", {"filter": "Kernel:a"}, "takes no options"),
        ("update", {}, "nothing to change"),
        ("dance", {}, "dance"),
    ],
)
def test_a_wrong_command_is_refused_and_goes_nowhere(daemon, agent, action, fields, named):
    daemon.start()
    one = agent(11)
    with pytest.raises(Exception, match=named):
        daemon.command(action, fields)
    assert not one.got(Command)


def test_a_process_that_does_not_answer_is_reported_in_time(daemon, agent):
    daemon.start()
    one = agent(11)
    one.answers["monitor.stop"] = None
    one.status = Status("stopping", stuck_in="msptiActivityEnable(Kernel)")
    wait_for_state(daemon, 11, "stopping")
    reply = daemon.command("stop")
    assert reply.outcome == "failed"
    assert "no answer in time" in reply.rows[0]["text"]
    assert "msptiActivityEnable(Kernel)" in reply.rows[0]["text"]


def test_no_match_has_four_different_answers(daemon, agent, until):
    daemon.start()
    nobody = daemon.command("stop")
    assert nobody.outcome == "none-registered"
    assert "msmon.init()" in nobody.next_step

    one, gone = agent(11, rank=0), agent(12, rank=1)
    absent = daemon.command("stop", pids=[2**22 + 1])
    assert absent.outcome == "none-matched"
    assert "no process 4194305 exists" in absent.text
    assert "pid 11 (rank 0)" in absent.next_step

    unregistered = daemon.command("stop", pids=[os.getpid()])
    assert unregistered.outcome == "none-matched"
    assert "never registered" in unregistered.text

    gone.end()
    wait_for_state(daemon, 12, "lost")
    dead = daemon.command("stop", pids=[12])
    assert dead.outcome == "lost"
    assert "fell silent" in dead.text

    rank = daemon.command("stop", ranks=[7], job_ids=["123_4"])
    assert rank.outcome == "none-matched"
    assert "rank 7" in rank.text
    assert "'123_4'" in rank.text
    assert not one.got(Command)


def test_a_wanted_pid_that_is_missing_beside_others_has_its_own_row(daemon, agent):
    daemon.start()
    agent(11)
    reply = daemon.command("stop", pids=[11, 2**22 + 1])
    assert reply.outcome == "partial"
    assert [(row["pid"], row["ok"]) for row in reply.rows] == [(11, True), (2**22 + 1, False)]


def test_jobs_with_equal_ranks_stay_apart(daemon, agent):
    daemon.start()
    first, second = agent(11, rank=0, job_id="123_4"), agent(12, rank=0, job_id="123.batch")
    assert daemon.command("stop", job_ids=["123_4"]).outcome == "ok"
    assert first.got(Command)
    assert not second.got(Command)


def test_a_silent_process_is_lost_and_comes_back_when_it_speaks(daemon, agent):
    daemon.start()
    one, other = agent(11), agent(12)
    one.silent = True
    wait_for_state(daemon, 11, "lost")
    assert daemon.row(12)["state"] == "idle"
    one.silent = False
    wait_for_state(daemon, 11, "idle")
    assert other.welcomes == 1


def test_a_daemon_that_was_stopped_for_a_while_loses_nobody(daemon, agent):
    daemon.start()
    one = agent(11)
    daemon.process.send_signal(signal.SIGSTOP)
    time.sleep(1.0)  # more than twice the silence that makes a process lost
    daemon.process.send_signal(signal.SIGCONT)
    assert daemon.row(11)["state"] == "idle"
    assert "is lost" not in daemon.log.read_text()
    assert one.welcomes == 1


def test_a_process_that_says_goodbye_has_ended(daemon, agent):
    daemon.start()
    one = agent(11)
    one.send(Goodbye("exit"))
    one.silent = False
    wait_for_state(daemon, 11, "ended")
    assert daemon.command("stop", pids=[11]).outcome == "lost"


def test_a_newer_hello_of_the_same_process_replaces_the_older(daemon, agent):
    daemon.start()
    agent(11)
    newer = agent(11)
    assert len(daemon.rows()) == 1
    assert daemon.command("stop").outcome == "ok"
    assert newer.got(Command)


def test_a_restarted_daemon_lists_the_processes_again(daemon, agent, until):
    daemon.start()
    one = agent(11, rank=4)
    one.status = Status("monitoring", session_id="s")
    daemon.restart()
    until(lambda: one.welcomes == 2, "the agent is welcome again")
    assert wait_for_state(daemon, 11, "monitoring")["rank"] == 4
    assert daemon.command("stop").outcome == "ok"


def test_windows_are_acknowledged_once_the_outputs_have_them(daemon, agent, until):
    daemon.start("--sink", "log")
    one = agent(11)
    one.open_session("s")
    for seq in (2, 3):
        one.send(*window("s", seq))
    until(lambda: one.acknowledged("s") == 3, "both windows are acknowledged")
    one.received.clear()
    one.send(*window("s", 2))
    until(lambda: one.acknowledged("s") == 3, "a duplicate is acknowledged again")


def test_a_stream_goes_on_after_the_daemon_was_killed(daemon, agent, until):
    daemon.start()
    one = agent(11)
    one.open_session("s")
    one.send(*window("s", 2))
    until(lambda: one.acknowledged("s") == 2, "the window is acknowledged")
    daemon.restart()
    until(lambda: one.welcomes == 2, "the agent is welcome again")
    one.open_session("s")
    one.send(*window("s", 57))
    until(lambda: one.acknowledged("s") == 57, "the stream goes on where it was")


def test_a_session_unknown_to_the_daemon_is_refused(daemon, agent, until):
    daemon.start()
    one = agent(11)
    one.send(*window("nobody", 5))
    (refusal,) = until(lambda: one.got(Refused), "the refusal")
    assert "not opened" in refusal.reason


def test_a_session_of_another_process_cannot_be_written_to(daemon, agent, until):
    daemon.start()
    one, thief = agent(11), agent(12)
    one.open_session("s")
    until(lambda: one.acknowledged("s") == 1, "the session is open")
    thief.send(*window("s", 2))
    (refusal,) = until(lambda: thief.got(Refused), "the refusal")
    assert "another process" in refusal.reason


def test_records_of_an_unknown_kind_do_not_stop_the_stream(daemon, agent, until):
    daemon.start("--sink", "log")
    one = agent(11)
    one.open_session("s")
    one.send(Records("s", 2, 99, 1), batch())
    one.send(*window("s", 3))
    until(lambda: one.acknowledged("s") == 3, "the stream goes on")
    assert not one.got(Refused)


def test_an_export_reports_its_files_and_drops(daemon, agent, until):
    daemon.start()
    directory = daemon.directory / "out"
    one = agent(11)

    def start(command: Command) -> Answer:
        one.open_session("s", command.fields)
        return Answer(True, "started", session_id="s")

    one.answers["monitor.start"] = start
    reply = daemon.command("start", {"log_file": str(directory), "export_type": "Jsonl"})
    assert reply.outcome == "ok", reply
    assert reply.rows[0]["files"]
    assert all(path.startswith(str(directory)) for path in reply.rows[0]["files"])
    assert one.got(Command)[0].fields["ship_records"] is True
    one.send(Records("s", 2, KERNEL, 3), batch(3))
    one.send(SessionClosed("s", 3, SessionEnd(5, "stopped")))
    until(lambda: one.acknowledged("s") == 3, "all is written")
    lines = sum(len(path.read_text().splitlines()) for path in directory.rglob("*.jsonl"))
    assert lines >= 3
    assert daemon.row(11)["files"] == reply.rows[0]["files"]


def test_an_export_that_cannot_be_made_is_refused_before_anything_starts(daemon, agent):
    daemon.start()
    one = agent(11)
    blocked = daemon.directory / "file"
    blocked.write_text("")
    with pytest.raises(Exception, match="not a directory"):
        daemon.command("start", {"log_file": str(blocked)})
    assert not one.got(Command)


def test_versions_of_both_sides(daemon):
    daemon.start()
    facts = daemon.ask(VersionRequest()).daemon
    assert facts["protocol"] == "1.0"
    assert facts["pid"] == daemon.process.pid


def test_rubbish_costs_only_its_sender(daemon, agent, until):
    daemon.start()
    one, fool = agent(11), agent(12)
    for frames in ([b""], [b"GET / HTTP/1.1"], [b"\xc1", b"x"], [b"\x91" * 60_000]):
        for _ in range(50):
            fool.send_frames(frames)
    until(lambda: len(fool.got(Refused)) == 200, "every piece is refused")
    assert daemon.row(11)["state"] == "idle"
    assert not one.got(Refused)
    assert len(daemon.log.read_text().splitlines()) < 20
