"""The audit log has every command with its answer, and stays bounded."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from fixtures.rows import answer_row

from msmon.bus.messages import MonitorRequest, Refused, Reply, Selection, TraceRequest
from msmon.daemon.access import audit
from msmon.daemon.access.audit import AuditLog, state_directory
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.access.shares import LIMITS, Resource

OLGA = Peer(Role.OPERATOR, "key olga", "k")
UMA = Peer(Role.USER, "uid 1000", "uid 1000", 1000, 7)


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
        log.note(OLGA, MonitorRequest("stop"), Reply("ok", str(number)))
    (last,) = written(log, tmp_path)
    assert last["text"] == "8"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["audit.jsonl", *(f"audit.jsonl.{n}" for n in range(1, audit.FILES_KEPT + 1))]
    assert entries(tmp_path / "audit.jsonl.1")[0]["text"] == "7"


def test_a_flood_of_refused_commands_pushes_nothing_out(tmp_path, monkeypatch):
    log = AuditLog(tmp_path)
    log.note(OLGA, MonitorRequest("stop"), Reply("ok"))
    long = MonitorRequest("x" * 9999, {"filter": "y" * 9999}, Selection(list(range(5000))))
    for _ in range(500):
        log.note(UMA, long, Refused("z" * 9999))
    (done,) = written(log, tmp_path)
    refused = entries(tmp_path / "audit-refused.jsonl")
    assert done["outcome"] == "ok"
    assert len(refused) == LIMITS[Resource.REFUSED_AUDIT_LINES].amount
    assert all(len(json.dumps(entry)) < 1500 for entry in refused)
    assert refused[0]["selection"]["pids"] == 5000


def test_what_could_not_be_written_is_counted_and_costs_one_line(tmp_path, caplog, wait_for):
    blocked = tmp_path / "state"
    blocked.write_text("a file, no directory")
    log = AuditLog(blocked)
    for _ in range(3):
        log.note(OLGA, MonitorRequest("stop"), Reply("ok"))
    wait_for(lambda: log.unwritten == 3, "three commands could not be written")
    blocked.unlink()
    log.note(OLGA, MonitorRequest("stop"), Reply("ok"))
    (entry,) = written(log, blocked)
    assert entry["unwritten_before"] == 3
    assert sum("can't be written" in record.message for record in caplog.records) == 1


def test_commands_that_found_no_room_are_counted(tmp_path, monkeypatch, wait_for):
    monkeypatch.setattr(audit, "_MAX_WAITING", 0)
    log = AuditLog(tmp_path)
    for _ in range(5):
        log.note(OLGA, MonitorRequest("stop"), Reply("ok"))
    assert log.unwritten == 5
    monkeypatch.setattr(audit, "_MAX_WAITING", 10)
    log.note(OLGA, MonitorRequest("stop"), Reply("ok"))
    wait_for(lambda: log.unwritten == 0, "the next command is written")
    log.note(OLGA, MonitorRequest("stop"), Reply("ok"))
    assert [entry["unwritten_before"] for entry in written(log, tmp_path)] == [5, 0]


def test_a_fifo_at_its_name_holds_up_nobody(tmp_path, wait_for):
    os.mkfifo(tmp_path / "audit.jsonl")
    log = AuditLog(tmp_path)
    log.note(OLGA, MonitorRequest("stop"), Reply("ok"))
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
