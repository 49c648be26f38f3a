"""npu-monitor commands through a real daemon: who gets what, and how each one answers."""

from __future__ import annotations

import os

import pytest

from msmon.bus.messages import Answer, Command, Status
from msmon.errors import CommandRefused


def test_a_command_reaches_every_process_and_each_answers(daemon, agent):
    daemon.start()
    first, second = agent(11, rank=0), agent(12, rank=1)
    second.answers["monitor.start"] = Answer(False, "already monitoring in session s7", "stop it")
    reply = daemon.command("start", {"filter": "Kernel:MatMul", "report_interval_s": 1})
    assert reply.outcome == "partial"
    assert [(row.rank, row.ok, row.text) for row in reply.rows] == [
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


def test_a_wrong_command_is_refused_and_goes_nowhere(daemon, agent):
    daemon.start()
    one = agent(11)
    for action, fields, named in [
        ("start", {"colour": 1}, "colour"),
        ("start", {"ship_records": True}, "ship_records"),
        ("start", {"report_interval_s": -1}, "--report-interval-s"),
        ("start", {"filter": "Kernel"}, "no colon"),
        ("stop", {"filter": "Kernel:a"}, "takes no options"),
        ("update", {}, "nothing to change"),
        ("dance", {}, "dance"),
    ]:
        with pytest.raises(CommandRefused, match=named):
            daemon.command(action, fields)
    assert not one.got(Command)


def test_a_process_that_does_not_answer_is_reported_in_time(daemon, agent, in_state):
    daemon.start()
    one = agent(11)
    one.answers["monitor.stop"] = None
    one.status = Status("stopping", stuck_in="msptiActivityEnable(Kernel)")
    in_state(11, "stopping")
    reply = daemon.command("stop")
    assert reply.outcome == "failed"
    assert "no answer in time" in reply.rows[0].text
    assert "msptiActivityEnable(Kernel)" in reply.rows[0].text


def test_a_process_that_has_ended_is_neither_stuck_nor_set_to_anything(daemon, agent, in_state):
    daemon.start()
    one = agent(11)
    one.status = Status("monitoring", settings={"kinds": "Kernel"}, stuck_in="msptiActivityEnable")
    assert in_state(11, "monitoring").stuck_in
    one.end()
    row = in_state(11, "lost")
    assert (row.stuck_in, row.settings) == ("", None)


def test_no_match_has_four_different_answers(daemon, agent, in_state):
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
    in_state(12, "lost")
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
    assert [(row.pid, row.ok) for row in reply.rows] == [(11, True), (2**22 + 1, False)]


def test_jobs_with_equal_ranks_stay_apart(daemon, agent):
    daemon.start()
    first, second = agent(11, rank=0, job_id="123_4"), agent(12, rank=0, job_id="123.batch")
    assert daemon.command("stop", job_ids=["123_4"]).outcome == "ok"
    assert first.got(Command)
    assert not second.got(Command)


def test_an_export_that_cannot_be_made_is_refused_before_anything_starts(daemon, agent):
    daemon.start()
    one = agent(11)
    blocked = daemon.directory / "file"
    blocked.write_text("")
    with pytest.raises(CommandRefused, match="not a directory"):
        daemon.command("start", {"log_file": str(blocked)}, wait_s=20.0)
    assert not one.got(Command)


def test_a_command_goes_to_those_that_train_and_not_to_who_waits_for_them(
    daemon, agent, in_state, wait_for
):
    daemon.start()
    notebook = agent(11, rank=0)
    trains = agent(12, rank=0, started_by="11:1")
    trains.status = Status("idle", step=4, step_age_s=0.0)
    assert in_state(11, "waiting").waits_for == [12]
    for rank in ((), (0,)):
        assert [row.pid for row in daemon.command("start", ranks=list(rank)).rows] == [12]
    assert [row.pid for row in daemon.command("start", pids=[11]).rows] == [11]
    trains.end()
    wait_for(lambda: daemon.row(11).state == "idle", "the notebook is a rank again")
    assert [row.pid for row in daemon.command("start").rows] == [11]
    assert len(notebook.got(Command)) == 2
