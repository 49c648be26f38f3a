"""``msmon status`` and ``msmon version`` against a daemon that answers as told."""

from __future__ import annotations

import dataclasses
import json

import pytest
from fixtures.rows import daemon_row, status_row

from msmon.bus.codec import as_fields
from msmon.bus.messages import Reply, Selection
from msmon.bus.rows import OutputRow
from msmon.commands.version import PROTOCOL
from msmon.errors import DaemonUnreachable

DAEMON = daemon_row(version="0.1.0", host="node1", pid=7, protocol="1.0")


def row(**changes):
    return status_row(
        **{"host": "node1", "pid": 100, "framework": "torch", "step": 12, "device": 0, **changes}
    )


ROW = row()


def test_a_row_per_process(run, daemon):
    daemon.reply = Reply("ok", rows=[ROW, row(pid=101, rank=1)], daemon=DAEMON)
    code, out, _ = run("status")
    assert code == 0
    assert out.splitlines()[0] == "msmon-daemon 0.1.0 on node1, pid 7"
    assert out.count("torch") == 2


def test_a_selected_process_is_shown_in_detail(run, daemon):
    daemon.reply = Reply("ok", rows=[row(library="simulated")], daemon=DAEMON)
    out = run("status", "--rank", "0")[1]
    assert "library" in out
    assert daemon.requests[0].selection == Selection(ranks=[0])


def test_a_lost_predecessor_does_not_count_as_another_selected_process(run, daemon):
    rows = [row(library="simulated"), row(pid=99, state="lost")]
    daemon.reply = Reply("ok", rows=rows, daemon=DAEMON)
    assert "library" in run("status", "--rank", "0")[1]


def test_several_selected_processes_are_a_table(run, daemon):
    rows = [row(library="simulated"), row(pid=101, rank=1)]
    daemon.reply = Reply("ok", rows=rows, daemon=DAEMON)
    assert "library" not in run("status", "--rank", "0,1")[1]
    assert "library" in run("status", "--rank", "0,1", "--verbose")[1]


def test_an_unencrypted_daemon_is_shown_as_such(run, daemon):
    daemon.reply = Reply("ok", rows=[ROW], daemon=dataclasses.replace(DAEMON, insecure=True))
    assert "NOT ENCRYPTED" in run("status")[1]


def test_an_output_in_trouble_is_shown_and_the_others_on_request(run, daemon):
    sinks = [
        OutputRow("jsonl", written={"Kernel": 12}),
        OutputRow("sqlite", drops={"disk": 5}, problem="disk full"),
    ]
    daemon.reply = Reply("ok", rows=[ROW], daemon=dataclasses.replace(DAEMON, sinks=sinks))
    out = run("status")[1]
    assert "output sqlite: disk full" in out
    assert "jsonl" not in out
    assert "output jsonl: 12 records written, dropped nothing" in run("status", "-v")[1]


def test_no_process_is_an_answer_unless_one_was_asked_for(run, daemon):
    daemon.reply = Reply("none-registered", "no process has registered", "", daemon=DAEMON)
    code, out, err = run("status")
    assert (code, "no process has registered" in err) == (0, True)
    assert "node1" in out
    assert run("status", "--pid", "5")[0] == 1


def test_a_wanted_rank_that_is_not_there_is_named(run, daemon):
    daemon.reply = Reply("ok", "no rank 9 is known", rows=[ROW], daemon=DAEMON)
    code, out, err = run("status", "--rank", "0,9")
    assert (code, err) == (1, "msmon: no rank 9 is known\n")
    assert "idle" in out
    assert run("status", "--rank", "0,9", "--json")[0] == 1


def test_json_is_the_whole_reply(run, daemon):
    daemon.reply = Reply("ok", rows=[ROW], daemon=DAEMON)
    code, out, _ = run("status", "--json")
    assert code == 0
    assert json.loads(out) == {
        "outcome": "ok",
        "text": "",
        "next_step": "",
        "rows": [as_fields(ROW)],
        "daemon": as_fields(DAEMON),
    }


@pytest.fixture
def two_looks(monkeypatch):
    """Let --watch look twice; then comes Ctrl-C."""
    looks = iter([None, KeyboardInterrupt()])

    def sleep(_: float) -> None:
        signal = next(looks)
        if signal is not None:
            raise signal

    monkeypatch.setattr("msmon.commands.status.command.time.sleep", sleep)


def test_an_error_has_the_same_keys_with_and_without_watch(run, daemon, two_looks):
    daemon.error = DaemonUnreachable("no daemon runs on this machine", "start msmon-daemon")
    expected = {
        "outcome": "error",
        "error": "DaemonUnreachable",
        "text": "no daemon runs on this machine",
        "next_step": "start msmon-daemon",
        "rows": [],
        "daemon": {},
    }
    code, out, _ = run("status", "--json")
    assert (code, json.loads(out)) == (1, expected)
    code, out, _ = run("status", "--json", "--watch")
    assert (code, [json.loads(line) for line in out.splitlines()]) == (130, [expected] * 2)


def test_watching_goes_on_until_ctrl_c(run, daemon, two_looks):
    daemon.reply = Reply("ok", rows=[ROW], daemon=DAEMON)
    code, out, _ = run("status", "--watch")
    assert code == 130
    assert out.count("FRAMEWORK") == 2


def test_version_shows_both_sides(run, daemon):
    daemon.reply = Reply("ok", daemon=DAEMON)
    code, out, _ = run("version")
    assert code == 0
    assert out.splitlines() == [
        f"msmon   0.1.0 (protocol {PROTOCOL})",
        "daemon  0.1.0 (protocol 1.0) on node1, pid 7",
    ]
    document = json.loads(run("version", "--json")[1])
    assert document["client"]["version"] == "0.1.0"
    assert document["daemon"] == as_fields(DAEMON)
