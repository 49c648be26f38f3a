"""A job judged from the windows of its ranks."""

from __future__ import annotations

import dataclasses

import pytest
from fixtures.live_windows import BASE_NS, LiveJob

from msmon.insight.verdict import Fault
from msmon.live.job_watch import Change, JobWatch, VerdictEvent


def watched(
    job: LiveJob, duration_s: float, without: int = -1
) -> tuple[JobWatch, list[VerdictEvent]]:
    watch, events = JobWatch(job.job), []
    for seen in job.windows(duration_s):
        if seen.process.rank != without:
            watch.add(seen)
            events += watch.judge()
    return watch, events


def test_a_healthy_job_gives_no_verdict() -> None:
    watch, events = watched(LiveJob(), 300)
    assert (events, watch.judgement.verdicts) == ([], ())
    assert watch.windows >= 27
    assert watch.latest is not None
    assert watch.judgement.unmatched == 0


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("factor", [1.15, 1.6])
def test_a_rank_that_becomes_slow_is_named_and_cleared(rank: int, factor: float) -> None:
    job = LiveJob(slow={rank: factor}, slow_from_s=200, slow_until_s=400)
    _, events = watched(job, 600)
    assert [event.change for event in events] == [Change.BEGUN, Change.CLEARED]
    begun, cleared = events
    assert (begun.verdict.kind, begun.verdict.ranks) == (Fault.SLOW_DEVICE, (rank,))
    assert begun.verdict.effect == pytest.approx(factor, rel=0.03)
    culprit, peer = begun.verdict.to_trace
    assert culprit == rank != peer
    assert f"--rank {culprit},{peer} " in begun.verdict.next
    assert begun.time_ns - BASE_NS <= (200 + 100) * 10**9
    assert cleared.verdict.until_ns is not None


def test_lateness_is_seen_between_ranks_that_count_for_themselves() -> None:
    _, events = watched(LiveJob(slow={2: 1.5}), 200)
    (begun,) = events
    assert begun.verdict.cost_percent == pytest.approx(100 * 20 * 12e6 * 0.5 / 500e6, rel=0.1)
    assert any("100 % of the waiting" in line for line in begun.verdict.evidence)


def test_a_rank_that_says_nothing_is_named_and_holds_up_nobody() -> None:
    watch, events = watched(LiveJob(slow={2: 1.5}), 200, without=1)
    assert [event.verdict.ranks for event in events] == [(2,)]
    assert [one.ranks for one in watch.abstained] == [(1,)]


def test_a_restarted_job_goes_on_with_its_new_processes() -> None:
    job = LiveJob(slow={1: 1.5})
    watch = JobWatch(job.job)
    for seen in job.windows(300):
        new = seen.window.index >= 15
        process = dataclasses.replace(seen.process, pid=9, start_time=2) if new else seen.process
        session = f"new {seen.session}" if new else seen.session
        began_ns = BASE_NS if new else seen.began_ns
        watch.add(dataclasses.replace(seen, process=process, session=session, began_ns=began_ns))
        list(watch.judge())
    assert [verdict.ranks for verdict in watch.judgement.verdicts] == [(1,)]
    assert watch.problems == []


def test_two_processes_that_claim_a_rank_are_told() -> None:
    job = LiveJob()
    watch = JobWatch(job.job)
    for seen in job.windows(60):
        watch.add(seen)
        other = dataclasses.replace(seen.process, pid=7)
        watch.add(dataclasses.replace(seen, process=other, session="other", began_ns=5))
    assert "two processes claim rank 0" in watch.problems[0]
