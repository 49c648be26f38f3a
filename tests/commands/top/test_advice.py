"""What to do where nothing can be seen."""

from __future__ import annotations

from fixtures.live_windows import LiveJob
from fixtures.rows import status_row

from msmon.commands.top.advice import NOT_ASKED_YET, advice
from msmon.commands.top.model import Model


def advised(rows, states_problem="", feed_problems=None, model=None) -> list[str]:
    return list(advice(model or Model(), rows, states_problem, feed_problems or {}).problems)


def test_before_the_first_answer():
    assert advised(None) == [NOT_ASKED_YET]


def test_a_daemon_that_is_not_there_is_told_once():
    told = advised(
        None,
        "no daemon runs here; start msmon-daemon",
        {"": "no daemon runs here (start msmon-daemon)"},
    )
    assert told == ["no daemon runs here; start msmon-daemon"]


def test_each_daemon_that_does_not_answer_is_named():
    told = advised([], "", {"node1": "no answer", "node2": "refused"})
    assert told[:2] == ["node1: no answer", "node2: refused"]


def test_without_processes_it_says_how_to_start_a_job():
    assert "msmon run" in advised([])[0]


def test_without_monitoring_it_says_how_to_start_it():
    rows = [status_row(rank=rank, pid=rank + 1) for rank in range(4)]
    (told,) = advised(rows)
    assert told.startswith("4 processes (ranks 0-3): not monitored")
    assert "msmon npu-monitor start" in told


def test_those_of_a_job_that_are_left_out_are_named(model_of_job):
    states = [
        status_row(host="node0", pid=1000, rank=0, job_id="train", state="monitoring"),
        status_row(host="node0", pid=1001, rank=1, job_id="train"),
        status_row(host="node9", pid=9, rank=2, job_id="train", state="lost"),
    ]
    model = model_of_job(LiveJob(ranks=2), 60, states)
    (told,) = advised(states, model=model)
    assert told.startswith("rank 1 node0:1001: not monitored")


def test_until_the_first_window_comes():
    rows = [status_row(state="monitoring", settings={"report_interval_s": 60.0})]
    assert advised(rows) == [
        "Monitored, and the first windows come after the report interval of 60 s."
    ]


def test_a_problem_of_several_ranks_is_told_once():
    rows = [
        status_row(rank=rank, pid=rank + 1, state="failed", problem="no libmspti.so")
        for rank in range(3)
    ]
    assert "3 processes (ranks 0-2): no libmspti.so" in advised(rows)
