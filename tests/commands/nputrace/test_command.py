"""The command line of nputrace, and waiting for what it has started."""

from __future__ import annotations

import json

import pytest
from fixtures.rows import answer_row, status_row

from msmon.bus.messages import Reply, TraceRequest
from msmon.commands.nputrace import waiting as trace_progress
from msmon.settings.trace_options import TRACE_OPTIONS

ACCEPTED = answer_row(text="accepted", trace_id="t")


def status(state: str, life: str = "idle", step_age_s: float = 0.1, **trace) -> Reply:
    known = {"state": state, "trace_id": "t", "start_step": 10, "stop_step": 12, **trace}
    return Reply("ok", rows=[status_row(state=life, step_age_s=step_age_s, trace=known)])


@pytest.fixture
def answers(daemon, monkeypatch):
    """Have the daemon give these replies one after another; the last one stays."""
    monkeypatch.setattr(trace_progress, "POLL_S", 0.0)

    def give(*replies: Reply) -> None:
        waiting = list(replies)

        def request(message, timeout_s):
            daemon.requests.append(message)
            return waiting.pop(0) if len(waiting) > 1 else waiting[0]

        daemon.request = request

    return give


def test_only_what_was_typed_is_sent(daemon, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, _ = run("nputrace", "--iterations", "2", "--log-file", "out", "--with-stack")
    assert code == 0
    (request,) = daemon.requests
    assert isinstance(request, TraceRequest)
    assert request.fields == {
        "iterations": 2,
        "log_file": str(tmp_path / "out"),
        "with_stack": True,
    }


def test_ranks_by_the_existing_name_of_the_option(daemon, run):
    run("nputrace", "--iterations", "1", "--log-file", "/o", "--rank-list", "0,4-5", "--rank", "9")
    assert daemon.requests[0].selection.ranks == [0, 4, 5, 9]


def test_help_names_every_option(run):
    code, out, _ = run("nputrace", "--help")
    assert code == 0
    assert all(option.flag in out for option in TRACE_OPTIONS)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--iterations", "2"),
        ("--iterations", "-1", "--log-file", "/o"),
        ("--iterations", "2", "--log-file", "/o", "--activities", "GPU"),
        ("--cancel", "--iterations", "2"),
    ],
)
def test_wrong_options_are_refused_here(daemon, run, arguments):
    assert run("nputrace", *arguments)[0] == 2
    assert daemon.requests == []


@pytest.mark.parametrize("flag", ["--iterations", "--duration-ms"])
def test_a_trace_of_nothing_is_out_of_range(daemon, run, flag):
    code, _, err = run("nputrace", flag, "0", "--log-file", "/o")
    assert code == 2
    assert f"{flag}: 0 is out of range\n  allowed: 1 to" in err


def test_cancel_sends_nothing_else(daemon, run):
    assert run("nputrace", "--cancel", "--rank", "1")[0] == 0
    assert (daemon.requests[0].action, daemon.requests[0].fields) == ("cancel", {})


def test_waiting_shows_each_change_and_the_files(answers, run):
    done = {"captured": [10, 11], "files": ["/o/a.json"]}
    answers(
        Reply("ok", rows=[ACCEPTED]),
        status("ready"),
        status("running"),
        status("running"),
        status("done", **done),
    )
    code, out, _ = run("nputrace", "--iterations", "2", "--log-file", "/o", "--wait")
    assert code == 0
    assert out.splitlines() == [
        "rank 0 node:11: accepted: accepted",
        "rank 0 node:11: ready, steps 10 to 11",
        "rank 0 node:11: running, steps 10 to 11",
        "rank 0 node:11: done, captured steps 10 to 11",
        "rank 0 node:11: ok: done, captured steps 10 to 11",
        "  /o/a.json",
    ]


@pytest.mark.parametrize(
    "last",
    [
        status("failed", reason="profiler is busy"),
        status("done", captured=[10, 10], partial=True, reason="1 of 2 steps"),
        status("running", life="lost"),
        status("done", trace_id="another"),
        Reply("ok", rows=[]),
    ],
)
def test_a_trace_that_is_not_complete_fails_the_command(answers, run, last):
    answers(Reply("ok", rows=[ACCEPTED]), status("running"), last)
    code, out, _ = run("nputrace", "--iterations", "2", "--log-file", "/o", "--wait", "--json")
    assert code == 1
    assert json.loads(out)["outcome"] == "failed"


def test_a_process_without_steps_is_said_to_make_none(answers, run):
    dry = status("ready", step_age_s=47.0)
    answers(Reply("ok", rows=[ACCEPTED]), dry, status("cancelled"))
    _, out, _ = run("nputrace", "--iterations", "2", "--log-file", "/o", "--wait")
    assert "no step seen for 40 s" in out
