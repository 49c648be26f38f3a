"""A real daemon: who it lists, what it answers, and what it survives."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from msmon.bus.messages import (
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
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
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.window_frames import frames_of
from msmon.records.windows import Window
from msmon.sessions import Counts, SessionEnd

KERNEL = int(ActivityKind.Kernel)


def batch(count: int = 1) -> tuple[bytes, bytes]:
    records = np.zeros(count, DTYPES[ActivityKind.Kernel])
    records["kind"] = KERNEL
    records["start_ns"], records["end_ns"] = 1_000, 2_000
    records["name"] = 1
    return Batch(ActivityKind.Kernel, records, ("", "MatMul")).to_frames()


def window(session_id: str, seq: int) -> tuple[WindowReport, tuple[bytes, ...]]:
    return WindowReport(session_id, seq, seq, 1, 2), frames_of(Window(seq, 1, 2))


def test_a_registered_process_is_listed_with_what_it_reports(daemon, agent, in_state):
    daemon.start()
    one = agent(11, rank=3, local_rank=1, device=5, job_id="123_4", framework="PyTorch")
    one.status = Status("monitoring", step=42, session_id="s", cpu_s=0.5)
    row = in_state(11, "monitoring")
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
    assert expected.items() <= vars(row).items()
    assert row.last_seen_s < 1


def test_a_silent_process_is_lost_and_comes_back_when_it_speaks(daemon, agent, in_state):
    daemon.start()
    one, other = agent(11), agent(12)
    one.silent = True
    in_state(11, "lost")
    assert daemon.row(12).state == "idle"
    one.silent = False
    in_state(11, "idle")
    assert other.welcomes == 1


def test_a_daemon_that_was_stopped_for_a_while_loses_nobody(daemon, agent):
    daemon.start()
    one = agent(11)
    daemon.process.send_signal(signal.SIGSTOP)
    time.sleep(1.0)  # more than twice the silence that makes a process lost
    daemon.process.send_signal(signal.SIGCONT)
    assert daemon.row(11).state == "idle"
    assert "is lost" not in daemon.log.read_text()
    assert one.welcomes == 1


def test_a_process_that_says_goodbye_has_ended(daemon, agent, in_state):
    daemon.start()
    one = agent(11)
    one.send(Goodbye("exit"))
    one.silent = False
    in_state(11, "ended")
    assert daemon.command("stop", pids=[11]).outcome == "lost"


def test_a_newer_hello_of_the_same_process_replaces_the_older(daemon, agent):
    daemon.start()
    agent(11)
    newer = agent(11)
    assert len(daemon.rows()) == 1
    assert daemon.command("stop").outcome == "ok"
    assert newer.got(Command)


def test_a_restarted_daemon_lists_the_processes_again(daemon, agent, wait_for, in_state):
    daemon.start()
    one = agent(11, rank=4)
    one.status = Status("monitoring", session_id="s")
    daemon.restart()
    wait_for(lambda: one.welcomes == 2, "the agent is welcome again")
    assert in_state(11, "monitoring").rank == 4
    assert daemon.command("stop").outcome == "ok"


def test_windows_are_acknowledged_once_the_outputs_have_them(daemon, agent, wait_for):
    daemon.start("--sink", "log")
    one = agent(11)
    one.open_session("s")
    for seq in (2, 3):
        one.send(*window("s", seq))
    wait_for(lambda: one.acknowledged("s") == 3, "both windows are acknowledged")
    one.received.clear()
    one.send(*window("s", 2))
    wait_for(lambda: one.acknowledged("s") == 3, "a duplicate is acknowledged again")


def test_a_stream_goes_on_after_the_daemon_was_killed(daemon, agent, wait_for):
    daemon.start()
    one = agent(11)
    one.open_session("s")
    one.send(*window("s", 2))
    wait_for(lambda: one.acknowledged("s") == 2, "the window is acknowledged")
    daemon.restart()
    wait_for(lambda: one.welcomes == 2, "the agent is welcome again")
    one.open_session("s")
    one.send(*window("s", 57))
    wait_for(lambda: one.acknowledged("s") == 57, "the stream goes on where it was")


def test_a_session_unknown_to_the_daemon_is_refused(daemon, agent, wait_for):
    daemon.start()
    one = agent(11)
    one.send(*window("nobody", 5))
    (refusal,) = wait_for(lambda: one.got(Refused), "the refusal")
    assert "not opened" in refusal.reason


def test_a_session_of_another_process_cannot_be_written_to(daemon, agent, wait_for):
    daemon.start()
    one, thief = agent(11), agent(12)
    one.open_session("s")
    wait_for(lambda: one.acknowledged("s") == 1, "the session is open")
    thief.send(*window("s", 2))
    (refusal,) = wait_for(lambda: thief.got(Refused), "the refusal")
    assert "another process" in refusal.reason


def test_records_of_an_unknown_kind_do_not_stop_the_stream(daemon, agent, wait_for):
    daemon.start("--sink", "log")
    one = agent(11)
    one.open_session("s")
    one.send(Records("s", 2, 99, 1), batch())
    one.send(*window("s", 3))
    wait_for(lambda: one.acknowledged("s") == 3, "the stream goes on")
    assert not one.got(Refused)


def test_an_export_reports_its_files_and_drops(daemon, agent, wait_for):
    daemon.start()
    directory = daemon.directory / "out"
    one = agent(11)

    def start(command: Command) -> Answer:
        one.open_session("s", command.fields)
        return Answer(True, "started", session_id="s")

    one.answers["monitor.start"] = start
    reply = daemon.command(
        "start", {"log_file": str(directory), "export_type": "Jsonl"}, wait_s=10.0
    )
    assert reply.outcome == "ok", reply
    assert reply.rows[0].files
    assert all(path.startswith(str(directory)) for path in reply.rows[0].files)
    assert one.got(Command)[0].fields["ship_records"] is True
    one.send(Records("s", 2, KERNEL, 3), batch(3))
    one.send(SessionClosed("s", 3, SessionEnd(5, "stopped")))
    wait_for(lambda: one.acknowledged("s") == 3, "all is written")
    lines = sum(len(path.read_text().splitlines()) for path in directory.rglob("*.jsonl"))
    assert lines >= 3
    assert daemon.row(11).files == reply.rows[0].files


def test_a_stop_accounts_for_what_each_output_has_written(daemon, agent):
    daemon.start("--sink", f"jsonl:path={daemon.directory / 'lines'}")
    one = agent(11)
    settings = {"kinds": "Kernel", "ship_records": True}

    def stop(command: Command) -> Answer:
        one.open_session("s", settings)
        one.send(Records("s", 2, KERNEL, 3), batch(3))
        one.send(Records("s", 3, 99, 1), batch())  # of a kind that the daemon does not know
        counts = Counts({"Kernel": 9}, {"Kernel": 6}, drops={"uplink": 2})
        one.send(SessionClosed("s", 4, SessionEnd(5, "stopped", counts)))
        return Answer(True, "stopped", session_id="s")

    one.answers["monitor.stop"] = stop
    reply = daemon.command("stop", wait_s=10.0)
    assert reply.rows[0].text == "stopped; jsonl: 3 written + 1 dropped (decode 1)"


def test_after_its_end_a_session_has_the_counts_of_its_end(daemon, agent, wait_for):
    """The last heartbeat may be older: a job ends between two of them."""
    daemon.start()
    one = agent(11)
    one.open_session("s")
    one.send(Status("monitoring", session_id="s", counts=Counts({"Kernel": 5}, {"Kernel": 4})))
    wait_for(lambda: daemon.row(11).received == {"Kernel": 5}, "the heartbeat")
    final = Counts({"Kernel": 9}, {"Kernel": 7}, drops={"uplink": 2})
    one.send(SessionClosed("s", 2, SessionEnd(5, "exit", final)))
    one.send(Goodbye("exit"))
    wait_for(lambda: daemon.row(11).received == {"Kernel": 9}, "the final counts")
    row = daemon.row(11)
    assert (row.kept, row.drops, row.state) == ({"Kernel": 7}, {"uplink": 2}, "ended")


def test_versions_of_both_sides(daemon):
    daemon.start()
    facts = daemon.ask(VersionRequest()).daemon
    assert facts.protocol == f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"
    assert facts.pid == daemon.process.pid


def test_rubbish_costs_only_its_sender(daemon, agent, wait_for):
    daemon.start()
    one, fool = agent(11), agent(12)
    for frames in ([b""], [b"GET / HTTP/1.1"], [b"\xc1", b"x"], [b"\x91" * 60_000]):
        for _ in range(10):
            fool.send_frames(frames)
    wait_for(lambda: len(fool.got(Refused)) == 40, "every piece is refused")
    assert daemon.row(11).state == "idle"
    assert not one.got(Refused)
    assert daemon.log.read_text().count("refused") == 1
