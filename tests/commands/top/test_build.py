"""Windows and states in, rows out."""

from __future__ import annotations

import dataclasses

from fixtures.live_windows import BASE_NS, LiveJob
from fixtures.rows import status_row

from msmon.commands.top.build import ModelBuilder
from msmon.commands.top.model import RankKey
from msmon.records.windows import Window


def test_ranks_of_a_job_with_their_numbers(slow_model):
    (job,) = slow_model.jobs
    assert (job.name, job.ranks, job.world_size, job.hosts, job.monitored) == ("train", 8, 8, 4, 8)
    assert job.step_ns == 500_000_000
    rows = slow_model.ranks["train"]
    assert [row.rank for row in rows] == list(range(8))
    assert all(row.busy + row.exposed + row.idle == 1 or row.idle for row in rows)
    slow = rows[3]
    assert slow.verdict == "slow-device"
    assert 1.28 < slow.work < 1.32
    assert 0.98 < rows[0].work < 1.02
    assert slow.exposed < rows[0].exposed  # nobody waits for the others less
    assert [one.verdict.ranks for one in slow_model.verdicts] == [(3,)]
    assert "slow-device" in job.verdict


def test_what_is_not_known_is_none():
    builder = ModelBuilder()
    job = LiveJob(ranks=1)
    seen = next(job.windows(20))
    bare = Window(0, seen.window.start_ns, seen.window.end_ns)
    builder.take([dataclasses.replace(seen, window=bare)])
    (row,) = builder.model(BASE_NS).ranks["train"]
    unknown = (row.step, row.step_ns, row.past, row.busy, row.exposed, row.idle, row.work)
    assert unknown == (None,) * 7
    assert (row.state, row.verdict) == ("", "")


def test_the_step_time_is_compared_with_that_of_earlier_windows():
    builder = ModelBuilder()
    windows = list(LiveJob(ranks=1).windows(65))
    for seen in windows[:-1]:
        builder.take([seen])
    assert builder.model(BASE_NS).ranks["train"][0].past == 1.0
    last = windows[-1].window
    slower = dataclasses.replace(last, step_total_ns=2 * last.step_total_ns)
    builder.take([dataclasses.replace(windows[-1], window=slower)])
    assert builder.model(BASE_NS).ranks["train"][0].past == 2.0


def test_a_registered_process_without_windows_has_a_row_too(model_of_job):
    states = [
        status_row(host="node9", pid=7, rank=8, job_id="train", world_size=9, step=5),
        status_row(host="node0", pid=1000, rank=0, job_id="train", state="monitoring", step=900),
    ]
    model = model_of_job(LiveJob(ranks=2), 60, states)
    rows = {row.rank: row for row in model.ranks["train"]}
    assert (rows[8].state, rows[8].step, rows[8].step_ns, rows[8].age_s) == ("idle", 5, None, None)
    assert (rows[0].state, rows[0].step) == ("monitoring", 900)
    assert rows[1].state == ""
    assert (model.jobs[0].ranks, model.jobs[0].monitored, model.jobs[0].world_size) == (3, 2, 9)


def test_a_process_that_took_the_place_of_a_lost_one_is_shown_alone(model_of_job):
    states = [
        status_row(host="node0", pid=1000, rank=0, job_id="train", state="lost"),
        status_row(host="node0", pid=77, rank=0, job_id="train", state="monitoring"),
        status_row(host="node0", pid=1001, rank=1, job_id="train", state="lost"),
    ]
    rows = model_of_job(LiveJob(ranks=2), 60, states).ranks["train"]
    assert [(row.rank, row.pid, row.state) for row in rows] == [
        (0, 77, "monitoring"),
        (1, 1001, "lost"),
    ]


def test_who_is_known_to_no_daemon_any_more_goes_after_a_while():
    builder = ModelBuilder()
    builder.take(list(LiveJob(ranks=2).windows(60)))
    minute_ns = 60_000_000_000
    assert len(builder.model(BASE_NS + 2 * minute_ns).ranks["train"]) == 2
    builder.take_states([status_row(host="node0", pid=1001, rank=1, job_id="train")])
    late = builder.model(BASE_NS + 20 * minute_ns)
    assert [row.pid for row in late.ranks["train"]] == [1001]
    builder.take_states([])
    assert builder.model(BASE_NS + 20 * minute_ns).jobs == ()


def test_processes_without_a_job_id_are_one_job_per_host():
    builder = ModelBuilder()
    builder.take(list(LiveJob(ranks=4, job="").windows(30)))
    model = builder.model(BASE_NS)
    assert [job.name for job in model.jobs] == ["host node0", "host node1"]


def test_a_model_does_not_change_with_what_comes_later():
    builder = ModelBuilder()
    windows = list(LiveJob(ranks=2).windows(60))
    builder.take(windows[:4])
    model = builder.model(BASE_NS)
    before = (model.windows[RankKey("node0", 1000)], model.ranks["train"])
    builder.take(windows[4:])
    builder.model(BASE_NS)
    assert (model.windows[RankKey("node0", 1000)], model.ranks["train"]) == before
