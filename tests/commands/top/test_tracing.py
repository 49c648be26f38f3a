"""The trace of marked ranks."""

from __future__ import annotations

import pytest
from fixtures.rows import answer_row

from msmon.bus.messages import Reply, Selection
from msmon.commands.top.model import RankKey
from msmon.commands.top.tracing import TraceAsker, answer_lines, trace_request
from msmon.errors import DaemonUnreachable

RANKS = [("train", RankKey("node0", 1000)), ("train", RankKey("node1", 1003))]


def test_what_is_asked_for(slow_model):
    request = trace_request(slow_model, RANKS, "/data/out", 7.0)
    assert request.fields == {"iterations": 2, "log_file": "/data/out"}
    assert request.selection == Selection([1000, 1003], [0, 3], ["train"])
    assert (str(request.action), request.pause_monitor, request.timeout_s) == ("start", True, 7.0)


def test_equal_answers_are_one_line():
    rows = [answer_row(rank=rank, pid=rank, text="steps 10 to 11") for rank in range(6)]
    rows.append(answer_row(rank=6, pid=6, ok=False, text="busy\x1b[2J"))
    lines = answer_lines(Reply("partial", "one refused", "wait", rows=rows))
    assert lines == (
        "rank 0 node:0, rank 1 node:1, rank 2 node:2, rank 3 node:3 and 2 more: ok: steps 10 to 11",
        "rank 6 node:6: failed: busy\\x1b[2J",
        "one refused; wait",
    )


def test_nobody_there():
    assert answer_lines(Reply("none-matched")) == ("no registered process matches",)


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (Reply("ok", rows=[answer_row(text="ready")]), ("rank 0 node:11: ok: ready",)),
        (DaemonUnreachable("no daemon", "start one"), ("no daemon", "start one")),
    ],
)
def test_the_answer_comes_later(slow_model, wait_for, answer, lines):
    def request(_):
        if isinstance(answer, Exception):
            raise answer
        return answer

    woken = []
    asker = TraceAsker(request, lambda: woken.append(True))
    asker.ask(trace_request(slow_model, RANKS, "/data", 1.0))
    wait_for(lambda: woken, "the screen is woken")
    assert asker.take() == lines
    assert asker.take() == ()
