"""The audit log has every command with its answer, and stays bounded."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from fixtures.rows import answer_row

from msmon.bus.messages import MonitorRequest, Refused, Reply, Selection, TraceRequest
from msmon.bus.rows import MissingRow
from msmon.daemon.access import audit
from msmon.daemon.access.audit import AuditLog, state_directory
from msmon.daemon.access.audit_lines import MAX_LINE_BYTES
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.access.shares import LIMITS, Resource, Shares

OLGA = Peer(Role.OPERATOR, "key olga", "k")
UMA = Peer(Role.USER, "uid 1000", "uid 1000", 1000, 7)
YES = Reply("ok", rows=[answer_row()])


def entries(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(log: AuditLog, directory: Path) -> list[dict]:
    log.close()
    return entries(directory / "audit.jsonl")


def test_an_entry_says_who_commanded_what_and_what_became_of_it(tmp_path):
    log = AuditLog(tmp_path / "state")
    rows = [answer_row(host="n", pid=3, text="done", command="secret")]
    log.note(
        OLGA, MonitorRequest("start", {"kind": "Kernel"}, Selection([3])), Reply("ok", rows=rows)
    )
    log.note(OLGA, TraceRequest("start"), Refused("no"))
    (first,) = written(log, tmp_path / "state")
    (second,) = entries(tmp_path / "state" / "audit-refused.jsonl")
    assert (first["who"], first["command"], first["outcome"]) == (
        "key olga",
        "npu-monitor start",
        "ok",
    )
    assert first["fields"] == {"kind": "Kernel"}
    assert first["selection"]["pids"] == [3]
    assert first["processes"] == [
        {"host": "n", "pid": 3, "rank": 0, "job_id": "", "ok": True, "text": "done"}
    ]
    assert (second["command"], second["outcome"], second["text"]) == (
        "nputrace start",
        "refused",
        "no",
    )
    assert stat.S_IMODE((tmp_path / "state" / "audit.jsonl").stat().st_mode) == 0o600


def test_old_files_are_kept_up_to_a_number(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "FILE_LIMIT_BYTES", 1)
    log = AuditLog(tmp_path)
    for number in range(9):
        log.note(OLGA, MonitorRequest("stop"), Reply("ok", str(number), rows=YES.rows))
    (last,) = written(log, tmp_path)
    assert last["text"] == "8"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["audit.jsonl", *(f"audit.jsonl.{n}" for n in range(1, audit.FILES_KEPT + 1))]
    assert entries(tmp_path / "audit.jsonl.1")[0]["text"] == "7"


def test_a_flood_of_refused_commands_pushes_nothing_out(tmp_path, monkeypatch):
    log = AuditLog(tmp_path)
    log.note(OLGA, MonitorRequest("stop"), YES)
    long = MonitorRequest("x" * 9999, {"filter": "y" * 9999}, Selection(list(range(5000))))
    for _ in range(500):
        log.note(UMA, long, Refused("z" * 9999))
    (done,) = written(log, tmp_path)
    refused = entries(tmp_path / "audit-refused.jsonl")
    assert done["outcome"] == "ok"
    assert len(refused) == LIMITS[Resource.REFUSED_AUDIT_LINES].amount
    assert all(len(json.dumps(entry)) < 1500 for entry in refused)
    assert refused[0]["selection"]["pids"] == 5000


@pytest.mark.parametrize(
    "reply",
    [
        Reply("none-matched", "z" * 9999),
        Reply("lost", rows=[MissingRow(pid=3, text="gone")]),
        Reply("failed", rows=[answer_row(ok=False, text="no answer in time")] * 3000),
    ],
)
def test_commands_that_no_process_carried_out_push_nothing_out(tmp_path, reply):
    log = AuditLog(tmp_path)
    log.note(OLGA, MonitorRequest("stop"), YES)
    jobs = MonitorRequest("stop", {}, Selection(job_ids=["\1" * 250] * 200))
    for _ in range(60):
        log.note(UMA, jobs, reply)
    (done,) = written(log, tmp_path)
    lines = (tmp_path / "audit-refused.jsonl").read_text().splitlines()
    assert done["outcome"] == "ok"
    assert len(lines) == LIMITS[Resource.REFUSED_AUDIT_LINES].amount
    assert max(map(len, lines)) < 1500
    told = json.loads(lines[0])
    assert (told["outcome"], told["selection"]["job_ids"]) == (reply.outcome, 200)
    assert told["text"] in (reply.text[:300], *(row.text for row in reply.rows))


def test_a_line_is_short_whatever_is_asked_and_answered(tmp_path):
    log = AuditLog(tmp_path)
    request = MonitorRequest(
        "\1" * 99,
        {"filter": "\1\U0001f600" * 9999},
        Selection(list(range(9999)), list(range(9999)), ["\1\U0001f600" * 125] * 200),
    )
    rows = [answer_row(host="\1" * 250, job_id="\1" * 250, text="\1" * 4000)] * 1000
    log.note(UMA, request, Reply("ok", "\1" * 9999, rows=rows))
    (entry,) = written(log, tmp_path)
    assert len((tmp_path / "audit.jsonl").read_text()) <= MAX_LINE_BYTES
    assert entry["selected"] == {"pids": 9999, "ranks": 9999, "job_ids": 200}
    assert entry["selection"]["pids"] == list(range(10))
    assert (entry["process_count"], entry["said_yes"]) == (1000, 1000)
    assert 0 < len(entry["processes"]) < 1000


def test_a_users_flood_of_commands_carried_out_is_counted(tmp_path):
    now_s = [0.0]
    log = AuditLog(tmp_path, Shares(clock_s=lambda: now_s[0]))
    share = int(LIMITS[Resource.AUDIT_LINES].amount)
    for _ in range(share + 7):
        log.note(UMA, MonitorRequest("stop"), YES)
    log.note(OLGA, MonitorRequest("stop"), YES)
    now_s[0] = 3600.0
    log.note(UMA, MonitorRequest("stop"), YES)
    lines = written(log, tmp_path)
    assert [line["who"] for line in lines] == ["uid 1000"] * share + ["key olga", "uid 1000"]
    assert [line["left_out_before"] for line in lines[-2:]] == [0, 7]


def test_what_could_not_be_written_is_counted_and_costs_one_line(tmp_path, caplog, wait_for):
    blocked = tmp_path / "state"
    blocked.write_text("a file, no directory")
    log = AuditLog(blocked)
    for _ in range(3):
        log.note(OLGA, MonitorRequest("stop"), YES)
    wait_for(lambda: log.unwritten == 3, "three commands could not be written")
    blocked.unlink()
    log.note(OLGA, MonitorRequest("stop"), YES)
    (entry,) = written(log, blocked)
    assert entry["unwritten_before"] == 3
    assert sum("can't be written" in record.message for record in caplog.records) == 1


def test_commands_that_found_no_room_are_counted(tmp_path, monkeypatch, wait_for):
    monkeypatch.setattr(audit, "_MAX_WAITING", 0)
    log = AuditLog(tmp_path)
    for _ in range(5):
        log.note(OLGA, MonitorRequest("stop"), YES)
    assert log.unwritten == 5
    monkeypatch.setattr(audit, "_MAX_WAITING", 10)
    log.note(OLGA, MonitorRequest("stop"), YES)
    wait_for(lambda: log.unwritten == 0, "the next command is written")
    log.note(OLGA, MonitorRequest("stop"), YES)
    assert [entry["unwritten_before"] for entry in written(log, tmp_path)] == [5, 0]


def test_a_fifo_at_its_name_holds_up_nobody(tmp_path, wait_for):
    os.mkfifo(tmp_path / "audit.jsonl")
    log = AuditLog(tmp_path)
    log.note(OLGA, MonitorRequest("stop"), YES)
    wait_for(lambda: log.unwritten == 1, "the command is counted as unwritten")
    log.close()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"MSMON_STATE_DIR": "/s", "STATE_DIRECTORY": "/x"}, "/s"),
        ({"STATE_DIRECTORY": "/var/lib/msmon:/var/lib/msmon/export"}, "/var/lib/msmon"),
        ({"MSMON_KEYS_DIR": "/k"}, "/k"),
    ],
)
def test_where_it_is_kept(environ, expected):
    assert state_directory(environ) == Path(expected)


def test_a_daemon_notes_commands_and_refusals_but_no_questions(daemon, agent, wait_for):
    daemon.start()
    agent(11)
    daemon.command("stop")
    daemon.rows()
    path = daemon.directory / "keys" / "audit.jsonl"
    (entry,) = wait_for(lambda: path.exists() and entries(path), "an entry is written")
    assert (entry["who"], entry["command"], entry["outcome"]) == (
        f"uid {os.geteuid()}",
        "npu-monitor stop",
        "ok",
    )
    assert entry["processes"][0]["pid"] == 11
