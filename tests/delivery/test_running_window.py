"""A rank that is killed loses at most about a second of the window that was open."""

from __future__ import annotations

import json
import time

from fixtures.one_rank_job import Job
from job import wait_for


def test_the_window_of_a_killed_rank_is_closed_with_what_it_held(job: Job) -> None:
    metrics = job.directory / "metrics.json"
    job.daemon_options = ("--heartbeat-s", "0.2", "--sink", f"metrics-json:path={metrics}")
    job.start_daemon()
    job.start_ranks()
    started = job.command("start", kinds="Kernel", report_interval_s=600.0)
    assert started.outcome == "ok", started
    rank = job.ranks[0]
    wait_for(lambda: sum(job.rows()[rank.pid].kept.values()) > 0, "kernels")
    time.sleep(2.5)  # what is told once a second needs some seconds to be told
    kept = sum(job.rows()[rank.pid].kept.values())
    assert metrics.read_text() == ""
    rank.kill()
    lines = wait_for(lambda: metrics.read_text().splitlines(), "the window of the killed rank")
    rows = [json.loads(line) for line in lines]
    assert {row["window"] for row in rows} == {0}
    assert sum(row["count"] for row in rows if row["kind"] == "Kernel") > kept / 3
    assert [row["count"] > 0 for row in rows if row["kind"] == "steps"] == [True]
