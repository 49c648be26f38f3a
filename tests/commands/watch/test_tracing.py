"""When ranks are traced, which ones, and what is told of it."""

from __future__ import annotations

import pytest
from fixtures.live_windows import LiveJob
from fixtures.rows import answer_row, status_row

from msmon.bus.messages import Reply, StatusRequest, TraceRequest
from msmon.commands.nputrace import waiting
from msmon.commands.watch import tracing
from msmon.commands.watch.chosen_ranks import ranks_to_trace
from msmon.commands.watch.notices import Told
from msmon.commands.watch.tracing import (
    DAY_S,
    Limits,
    TraceLimits,
    Tracer,
    TraceTask,
    processes_of,
)
from msmon.errors import CommandRefused
from msmon.live.job_watch import JobWatch
from msmon.live.seen import SeenRank

PROCESSES = [SeenRank(f"node{rank}", 100 + rank, 1, "train", rank) for rank in (3, 1, 5)]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 0.0)


class Daemon:
    """Accepts traces; they are done at the second question, or never."""

    def __init__(self, state: str = "done", traced_before: bool = False) -> None:
        self.requests: list = []
        self._state = state
        self._traced_before = traced_before

    def request(self, message) -> Reply:
        self.requests.append(message)
        if isinstance(message, TraceRequest):
            rows = [
                answer_row(**self._who(one), text="accepted", trace_id=f"t{one.rank}")
                for one in PROCESSES
            ]
            return Reply("ok", rows=rows)
        state = self._state if len(self.requests) > 2 else "running"
        if len(self.requests) == 1:
            state = "done" if self._traced_before else "idle"
        return Reply("ok", rows=[self._status(one, state) for one in PROCESSES])

    def _who(self, one: SeenRank) -> dict:
        return {"host": one.host, "pid": one.pid, "rank": one.rank, "job_id": one.job}

    def _status(self, one: SeenRank, state: str):
        files = [f"/data/rank{one.rank}.json"] if state == "done" else []
        trace = {"state": state, "trace_id": f"t{one.rank}", "captured": [7, 8], "files": files}
        return status_row(**self._who(one), step_age_s=0.1, trace=trace)


def test_two_steps_of_the_processes_are_traced_and_the_files_named(notice) -> None:
    daemon = Daemon()
    tracer = Tracer(daemon.request, "/data")
    assert tracer.send(TraceTask(notice(), PROCESSES)) == ""
    begin = daemon.requests[0]
    assert (begin.fields, begin.pause_monitor) == ({"iterations": 2, "log_file": "/data"}, True)
    assert begin.selection.pids == [101, 103, 105]
    assert (begin.selection.ranks, begin.selection.job_ids) == ([1, 3, 5], ["train"])
    ((_, traced),) = tracer.results
    assert [(one.rank, one.host, one.ok, one.files) for one in traced] == [
        (rank, f"node{rank}", True, (f"/data/rank{rank}.json",)) for rank in (1, 3, 5)
    ]


def test_a_trace_that_does_not_come_to_its_end_is_cancelled(notice, monkeypatch) -> None:
    monkeypatch.setattr(tracing, "LIMIT_S", 0.2)
    daemon = Daemon("ready")
    tracer = Tracer(daemon.request, "/data")
    tracer.send(TraceTask(notice(), PROCESSES))
    assert daemon.requests[-1].action == "cancel"
    ((_, traced),) = tracer.results
    assert {(one.ok, one.text) for one in traced} == {
        (False, "not finished after 0 s, and cancelled")
    }


def test_a_refusal_is_told(notice) -> None:
    def request(_):
        raise CommandRefused("viewers may not command", "use an operator key")

    tracer = Tracer(request, "/data")
    told = tracer.send(TraceTask(notice(), PROCESSES))
    assert told == "no trace: viewers may not command; use an operator key"
    assert not tracer.results


def test_what_held_before_is_not_traced_again(notice) -> None:
    daemon = Daemon(traced_before=True)
    told = Tracer(daemon.request, "/data").send(TraceTask(notice(Told.PRESENT), PROCESSES))
    assert told == "no trace: one was taken before this watch began"
    assert [type(request) for request in daemon.requests] == [StatusRequest]
    fresh = Daemon()
    Tracer(fresh.request, "/data").send(TraceTask(notice(Told.PRESENT), PROCESSES))
    assert isinstance(fresh.requests[1], TraceRequest)


def test_at_most_one_in_half_an_hour_and_six_a_day_for_each_job() -> None:
    limits, now_s, taken_s = TraceLimits(Limits()), 0.0, []
    while now_s < 2 * DAY_S:
        if not limits.refusal("a", now_s):
            limits.take("a", now_s)
            taken_s.append(now_s)
        now_s += 600.0
    assert taken_s == [day * DAY_S + 1800.0 * place for day in range(2) for place in range(6)]
    assert "--traces-per-day" in limits.refusal("a", 1.9 * DAY_S)
    assert limits.refusal("b", now_s) == ""
    limits.take("b", now_s)
    assert "was 10 min ago" in limits.refusal("b", now_s + 600)


def test_the_one_to_blame_a_peer_and_one_that_waits_are_chosen() -> None:
    watch = JobWatch("train")
    for seen in LiveJob(slow={2: 1.5}).windows(120):
        watch.add(seen)
        list(watch.judge())
    (verdict,) = watch.judgement.verdicts
    chosen = ranks_to_trace(verdict, watch.latest)
    assert chosen[:2] == verdict.to_trace
    assert chosen[0] == 2
    assert len(set(chosen)) == 3


def test_nobody_is_traced_where_nobody_is_to_blame(verdict) -> None:
    assert ranks_to_trace(verdict(to_trace=()), None) == ()
    assert ranks_to_trace(verdict(), None) == (3, 1)


def test_processes_that_are_not_known_are_passed_over() -> None:
    assert processes_of((3, 8), {3: PROCESSES[0]}) == [PROCESSES[0]]
