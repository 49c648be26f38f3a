"""Rounds of watching, with windows and daemons by hand."""

from __future__ import annotations

import contextlib
import json
from collections import deque

import pytest
from fixtures.live_windows import LiveJob
from fixtures.rows import status_row

from msmon.bus.messages import Reply
from msmon.commands.watch import loop as loop_module
from msmon.commands.watch.delivery import Delivery
from msmon.commands.watch.loop import Tracing, Watch
from msmon.commands.watch.notices import TracedRank
from msmon.commands.watch.printing import Printer
from msmon.commands.watch.registered import Registered, unmonitored
from msmon.commands.watch.tracing import Limits, TraceLimits, TraceTask


class Windows:
    """The windows of a job, up to a moment that the test moves."""

    def __init__(self, job: LiveJob) -> None:
        self.problems: dict[str, str] = {}
        self._windows = list(job.windows(600))
        self._from = 0

    def until(self, place: int) -> None:
        self._until = round(len(self._windows) * place / 60)

    def poll(self) -> list:
        new = self._windows[self._from : self._until]
        self._from = max(self._from, self._until)
        return new

    def wait(self, timeout_s: float) -> bool:
        return False

    def wait_for_all(self, timeout_s: float) -> bool:
        return True


class Collector:
    """Keeps what it is given; a trace is done at once."""

    def __init__(self) -> None:
        self.items: list = []
        self.results: deque = deque()

    def send(self, item) -> str:
        self.items.append(item)
        if isinstance(item, TraceTask):
            traced = [
                TracedRank(one.rank, one.host, True, "done", ("/f",)) for one in item.processes
            ]
            self.results.append((item.notice, tuple(traced)))
        return ""

    def abort(self) -> None:
        pass


@pytest.fixture
def idle():
    return Registered(lambda: Reply("ok"))


def lines(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_rank_that_becomes_slow_is_told_traced_and_cleared(capsys, idle, wait_for) -> None:
    source = Windows(LiveJob(slow={3: 1.5}, slow_from_s=200, slow_until_s=400))
    documents, tracer = Collector(), Collector()
    with contextlib.ExitStack() as stack:
        delivery = stack.enter_context(Delivery("--on-verdict", documents))
        traces = stack.enter_context(Delivery("--trace", tracer))
        tracing = Tracing(tracer, traces, TraceLimits(Limits()))
        watch = Watch(source, Printer(True), False, idle, [delivery], tracing)
        for place in range(2, 36):
            source.until(place)
            watch.round(first=place == 2)
        wait_for(lambda: watch.round() or len(documents.items) == 2, "the trace")
        for place in range(36, 61):
            source.until(place)
            watch.round()
        wait_for(lambda: len(documents.items) == 3, "all documents")
    told = [line for line in lines(capsys) if line["change"] != "note"]
    assert [line["change"] for line in told] == ["begun", "traced", "cleared"]
    assert {tuple(line["ranks"]) for line in told} == {(3,)}
    ranks = [one["rank"] for one in told[1]["trace"]]
    assert (ranks[0], len(set(ranks))) == (3, 3)
    assert told[2]["trace"] == told[1]["trace"]
    assert [json.loads(item)["change"] for item in documents.items] == [
        "begun",
        "traced",
        "cleared",
    ]


def test_what_holds_at_the_start_is_told_as_present(capsys, idle) -> None:
    source = Windows(LiveJob(slow={1: 1.5}, slow_from_s=100))
    source.until(50)
    watch = Watch(source, Printer(True), False, idle)
    watch.round(first=True)
    source.until(55)
    watch.round()
    assert [(line["change"], line["ranks"]) for line in lines(capsys)] == [("present", [1])]


def test_text_names_job_evidence_and_the_next_command(capsys, idle) -> None:
    source = Windows(LiveJob(slow={1: 1.5}))
    source.until(30)
    Watch(source, Printer(False), False, idle).round(first=True)
    first, *rest = capsys.readouterr().out.splitlines()
    assert "job train: present: slow device: rank 1 (node0, NPU 1) needs 1.5" in first
    assert any(line.startswith("  worst: ") for line in rest)
    assert rest[-1].startswith("  next: msmon nputrace --host node0 --rank 1,")


def test_daemons_that_go_and_come_are_told_once(capsys, idle) -> None:
    source = Windows(LiveJob())
    source.until(3)
    watch = Watch(source, Printer(False), False, idle)
    for problems in ({}, {"node3": "no answer"}, {"node3": "no key"}, {}, {}):
        source.problems = problems
        watch.round()
    told = [line.split(" ", 2)[2] for line in capsys.readouterr().err.splitlines()]
    assert told == ["daemon node3: can't be asked: no answer", "daemon node3: can be asked again"]


def test_a_job_that_falls_silent_is_told_once(capsys, idle, monkeypatch) -> None:
    monkeypatch.setattr(loop_module, "SILENT_S", -1.0)
    source = Windows(LiveJob())
    source.until(3)
    watch = Watch(source, Printer(False), False, idle)
    watch.round()
    watch.round()
    (line,) = capsys.readouterr().err.splitlines()
    assert "job train: nothing has come from it" in line


def test_processes_that_are_not_monitored_are_named_by_job() -> None:
    rows = [
        status_row(rank=rank, job_id="train", state=state)
        for rank, state in enumerate(["idle", "monitoring", "idle", "lost", "tracing", "waiting"])
    ]
    (told,) = unmonitored(rows).items()
    assert told[0] == "train"
    assert told[1].startswith("not monitored: rank 0, 2; msmon npu-monitor start ")


def test_what_is_not_monitored_is_told_when_it_stays(wait_for) -> None:
    answers = [status_row(rank=0, job_id="train")]
    with Registered(lambda: Reply("ok", rows=answers), look_s=0.01) as registered:
        (first,) = wait_for(registered.news, "the first news")
        assert first[0] == "train"
        answers.clear()
        assert wait_for(registered.news, "the end") == [
            ("train", "all its registered processes are monitored")
        ]
