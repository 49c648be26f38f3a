"""``msmon npu-monitor``: what goes on the wire, what is shown, the exit code."""

from __future__ import annotations

import json
import os

import pytest
from fixtures.rows import answer_row

from msmon.bus.messages import MonitorRequest, Reply, Selection
from msmon.bus.rows import MissingRow


def row(rank: int, **changes):
    return answer_row(**{"host": "node1", "pid": 100 + rank, "rank": rank, **changes})


def sent(daemon) -> MonitorRequest:
    (request,) = daemon.requests
    return request


def test_only_what_was_typed_is_sent(run, daemon):
    daemon.reply = Reply("ok", rows=[row(0)])
    assert run("npu-monitor", "start", "--filter", "Kernel:MatMul", "--rank", "0")[0] == 0
    assert sent(daemon) == MonitorRequest(
        "start", {"filter": "Kernel:MatMul"}, Selection(ranks=[0]), 10.0
    )


def test_update_of_one_setting_mentions_no_other(run, daemon):
    run("npu-monitor", "update", "--report-interval-s", "5")
    assert sent(daemon).fields == {"report_interval_s": 5.0}


def test_an_empty_filter_is_something_that_was_typed(run, daemon):
    run("npu-monitor", "update", "--filter", "")
    assert sent(daemon).fields == {"filter": ""}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--report-interval-s", "nan"], "--report-interval-s"),
        (["--report-interval-s", "0"], "--report-interval-s"),
        (["--report-interval-s", "1e400"], "--report-interval-s"),
        (["--duration", "-1"], "--duration"),
        (["--duration", "inf"], "--duration"),
        (["--kind", "Kernel,,API"], "--kind"),
        (["--kind", "kernel"], "--kind"),
        (["--filter", "Kernel"], "--filter"),
        (["--filter", "Kernel:a;;"], "--filter"),
        (["--export-type", "csv"], "--export-type"),
        (["--json-rotate-log-lines", "99"], "--json-rotate-log-lines"),
        (["--timeout", "0"], "--timeout"),
        (["--port", "65536"], "--port"),
        (["--port", "0"], "--port"),
        (["--host", "a b"], "--host"),
        (["--rank", "x"], "--rank"),
        (["--log-file", "out\udcff"], "--log-file"),
        (["--keys", "k"], "--keys"),
    ],
)
def test_a_wrong_value_ends_with_2_and_names_its_option(run, daemon, arguments, named):
    code, _, err = run("npu-monitor", "start", *arguments)
    assert code == 2
    assert named in err
    assert not daemon.requests


def test_the_help_of_update_claims_no_default(run, daemon):
    text = " ".join(run("npu-monitor", "update", "--help")[1].split())
    assert text.count("[default: unchanged]") == 3
    assert "Marker]" not in text
    assert "60" not in text
    assert "[default: those the filter names, else Marker]" in " ".join(
        run("npu-monitor", "start", "--help")[1].split()
    )


@pytest.mark.parametrize(
    "option",
    [
        ("--export-type", "Jsonl"),
        ("--json-rotate-log-lines", "500"),
        ("--json-rotate-log-files", "3"),
    ],
)
def test_how_files_are_written_means_nothing_without_files(run, daemon, option):
    code, _, err = run("npu-monitor", "start", *option)
    assert code == 2
    assert option[0] in err
    assert "add --log-file" in err
    assert not daemon.requests
    assert run("npu-monitor", "start", *option, "--log-file", "/o")[0] == 0


def test_update_refuses_what_can_not_change(run, daemon):
    code, _, err = run("npu-monitor", "update", "--log-file", "elsewhere")
    assert code == 2
    assert "--log-file can't change" in err
    assert "stop the session" in err


def test_update_of_nothing_is_refused(run, daemon):
    assert run("npu-monitor", "update")[0] == 2


@pytest.mark.parametrize("path", [".", "./", "a/../b", "my out", "输出", "a;rm -rf b"])
def test_relative_paths_become_absolute_and_are_otherwise_left_alone(run, daemon, path):
    run("npu-monitor", "start", "--log-file", path)
    assert sent(daemon).fields["log_file"] == os.path.join(os.getcwd(), path)


def test_a_home_directory_is_expanded(run, daemon, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    run("npu-monitor", "start", "--log-file", "~/out")
    assert sent(daemon).fields["log_file"] == "/home/someone/out"


def test_a_relative_path_means_nothing_on_another_machine(run, daemon):
    code, _, err = run("npu-monitor", "start", "--host", "node9", "--log-file", "out")
    assert code == 2
    assert "node9" in err
    run("npu-monitor", "start", "--host", "node9", "--log-file", "/data/out")
    assert sent(daemon).fields["log_file"] == "/data/out"


def test_every_process_gets_a_line_in_rank_order(run, daemon):
    daemon.reply = Reply(
        "ok", rows=[row(1, files=["/data/b.db"]), row(0, text="collecting Kernel")]
    )
    code, out, err = run("npu-monitor", "start")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "rank 0 node1:100: ok: collecting Kernel",
        "rank 1 node1:101: ok",
        "  /data/b.db",
    ]


def test_one_failed_process_fails_the_command(run, daemon):
    failed = row(1, ok=False, text="another profiler runs", next_step="stop it first")
    daemon.reply = Reply("partial", rows=[row(0), failed])
    code, out, _ = run("npu-monitor", "start")
    assert code == 1
    assert "rank 1 node1:101: failed: another profiler runs\n  stop it first\n" in out


def test_a_message_of_two_lines_is_shown_as_one(run, daemon):
    daemon.reply = Reply("ok", rows=[row(0, text="MemCpy is unavailable\nset LD_PRELOAD")])
    assert run("npu-monitor", "start")[1] == (
        "rank 0 node1:100: ok: MemCpy is unavailable; set LD_PRELOAD\n"
    )


@pytest.mark.parametrize("outcome", ["none-registered", "none-matched", "lost", "failed"])
def test_nothing_reached_ends_with_1_and_says_why(run, daemon, outcome):
    daemon.reply = Reply(outcome, f"because of {outcome}", "look there")
    code, _, err = run("npu-monitor", "stop")
    assert code == 1
    assert err == f"msmon: because of {outcome}\n  look there\n"


def test_a_rank_that_is_not_there_is_named_and_fails_the_command(run, daemon):
    missing = MissingRow(rank=9, text="no rank 9 is known")
    daemon.reply = Reply("partial", rows=[row(0), missing])
    code, out, _ = run("npu-monitor", "start", "--rank", "0,9")
    assert code == 1
    assert "rank 9: failed: no rank 9 is known" in out


def test_json_is_the_whole_reply(run, daemon):
    daemon.reply = Reply("partial", "one failed", "", [row(0), row(1, ok=False)])
    code, out, _ = run("npu-monitor", "start", "--json")
    assert code == 1
    document = json.loads(out)
    assert document["outcome"] == "partial"
    assert [entry["ok"] for entry in document["rows"]] == [True, False]
