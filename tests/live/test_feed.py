"""The windows of real daemons, followed."""

from __future__ import annotations

import time

import pytest

from msmon.bus.messages import WindowReport
from msmon.errors import DaemonUnreachable
from msmon.live.feed import Feed
from msmon.records.window_frames import frames_of
from msmon.records.windows import Window

SESSION = "5" * 32


def report(one, seq: int, index: int) -> None:
    window = Window(index, 10, 20, step=6, kept={"Kernel": 4}, steps=3, step_total_ns=9)
    one.send(WindowReport(SESSION, seq, **window.header_fields()), frames_of(window))


def polled(feed: Feed, count: int) -> list:
    """Return what comes until it is so many windows."""
    seen, deadline_s = [], time.monotonic() + 20
    while len(seen) < count and time.monotonic() < deadline_s:
        feed.wait(1.0)
        seen += feed.poll()
    return seen


@pytest.fixture
def no_daemon():
    def endpoint():
        raise DaemonUnreachable("no daemon is there", "start one")

    return endpoint


def test_windows_of_one_daemon_come_though_another_is_not_there(daemon, agent, no_daemon):
    daemon.start()
    one = agent(11, rank=3, job_id="j", world_size=8)
    one.open_session(SESSION)
    report(one, 2, 0)
    with Feed({"here": daemon.endpoint, "there": no_daemon}) as feed:
        (first,) = polled(feed, 1)
        assert (first.process.pid, first.process.rank, first.process.world_size) == (11, 3, 8)
        assert (first.process.job, first.window.index, first.window.steps) == ("j", 0, 3)
        assert feed.wait_for_all(20)
        assert feed.problems == {"there": "no daemon is there (start one)"}
        report(one, 3, 1)
        (second,) = polled(feed, 1)
        assert (second.session, second.window.index) == (first.session, 1)
        assert feed.missed == 0


def test_a_daemon_that_is_started_again_is_followed_on(daemon, agent, wait_for):
    daemon.start()
    one = agent(11, rank=3)
    one.open_session(SESSION)
    report(one, 2, 0)
    with Feed({"here": daemon.endpoint}) as feed:
        assert len(polled(feed, 1)) == 1
        daemon.stop()
        wait_for(lambda: feed.problems, "it is missed")
        daemon.start()
        wait_for(lambda: not feed.problems, "it is there again")
        again = agent(11, rank=3)
        again.open_session(SESSION)
        report(again, 2, 1)
        assert [seen.window.index for seen in polled(feed, 1)] == [1]
