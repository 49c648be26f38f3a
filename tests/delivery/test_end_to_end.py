"""Every record that a job makes is in its outputs once, whatever happens to the daemon."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exports import Database, JsonLines, databases
from job import ALL_KINDS, Job, wait_for

from msmon.bus.messages import Reply

SIMULATION = "rate=6000,step_ms=100,preload=1,seed=5"
RECORDS = 6_000
"""Enough of them to span several flushes, windows and commits."""


@pytest.fixture
def job() -> Iterator[Job]:
    with tempfile.TemporaryDirectory(prefix="msmon-", ignore_cleanup_errors=True) as directory:
        with Job(Path(directory).resolve(), ranks=4, simulation=SIMULATION) as started:
            lines = started.directory / "lines"
            started.daemon_options = (
                *("--heartbeat-s", "0.5", "--sink", f"jsonl:path={lines}"),
                *("--sink", f"metrics-json:path={started.directory / 'windows'}"),
            )
            started.start_daemon()
            started.start_ranks()
            yield started


def start(job: Job, **fields: Any) -> Path:
    """Start to export as DB, beside the daemon's own JSONL; returns the directory."""
    exports = job.directory / "db"
    reply = job.command(
        "start", log_file=str(exports), export_type="DB", report_interval_s=1.0, **fields
    )
    assert reply.outcome == "ok", reply
    return exports


def await_records(job: Job, count: int) -> None:
    """Wait until every rank that lives has kept so many records more than now."""

    def kept() -> dict[int, int]:
        rows = job.rows()
        return {
            rank.pid: sum(rows.get(rank.pid, {}).get("kept", {}).values()) for rank in job.living
        }

    before = kept()
    wait_for(
        lambda: all(now >= before[pid] + count for pid, now in kept().items()), f"{count} records"
    )


def kept_by(stopped: Reply) -> dict[int, str]:
    return {row["pid"]: row["text"] for row in stopped.rows}


def check_exact(job: Job, exports: Path) -> None:
    """All counts agree, and both formats hold the same records, each as often."""
    rows = job.await_states("idle")
    found = databases(exports)
    for rank in job.living:
        database, lines = found[rank.pid], JsonLines(job.directory / "lines", rank.pid)
        counts = database.counts()
        assert counts == rank.recorded()
        assert counts == rows[rank.pid]["kept"]
        assert database.gaps() == []
        assert lines.gaps() == []
        events = database.events()
        assert events == lines.events()
        counts["Marker"] -= database.unpaired_markers
        assert lines.counts() == +counts
        assert database.end == "stopped"
        assert database.doubled() == 0


def totals(events: Counter[Any], kind: str) -> dict[str, list[int]]:
    """Return name → [count, total ns] of one kind."""
    result: dict[str, list[int]] = {}
    for event, count in events.items():
        if event.kind == kind:
            of_name = result.setdefault(event.name, [0, 0])
            of_name[0] += count
            of_name[1] += count * (event.end_ns - event.start_ns)
    return result


def test_ledger_daemon_database_and_lines_agree(job: Job) -> None:
    exports = start(job, kinds=ALL_KINDS)
    await_records(job, RECORDS)
    assert job.command("stop").outcome == "ok"
    check_exact(job, exports)
    job.end_daemon()
    assert sorted(path.suffix for path in exports.iterdir()) == [".db"] * 4
    for rank in job.ranks:
        events = Database(next(exports.glob(f"msmonitor_{rank.pid}_*"))).events()
        truth = json.loads(rank.ledger.read_text())["operators"]
        for kind in ("Kernel", "AclAPI", "Communication"):
            expected = {
                row["name"]: [row["count"], row["total_ns"]] for row in truth if row["kind"] == kind
            }
            assert totals(events, kind) == expected


def test_a_filtered_session_holds_exactly_the_matching_records(job: Job) -> None:
    text = "Kernel:MatMul,Adam;Communication:allReduce"
    exports = start(job, filter=text)
    await_records(job, RECORDS // 6)
    assert job.command("stop").outcome == "ok"
    job.await_states("idle")
    for pid, database in databases(exports).items():
        (rank,) = (rank for rank in job.ranks if rank.pid == pid)
        expected = {
            (row["kind"], row["name"]): row["count"]
            for row in json.loads(rank.ledger.read_text())["operators"]
            if (row["kind"] == "Kernel" and ("MatMul" in row["name"] or "Adam" in row["name"]))
            or (row["kind"] == "Communication" and "allReduce" in row["name"])
        }
        events = database.events()
        written: Counter[tuple[str, str]] = Counter()
        for event, count in events.items():
            written[event.kind, event.name] += count
        assert written == expected
        assert events == JsonLines(job.directory / "lines", pid).events()


def test_a_killed_daemon_costs_nothing_and_doubles_nothing(job: Job) -> None:
    exports = start(job, kinds=ALL_KINDS)
    for pause_s in (0.7, 1.3):
        await_records(job, RECORDS // 4)
        time.sleep(pause_s)
        job.end_daemon(signal.SIGKILL)
        job.start_daemon()
        job.await_states("monitoring")
    await_records(job, RECORDS // 4)
    stopped = job.command("stop")
    assert stopped.outcome == "ok", stopped
    check_exact(job, exports)


def test_a_daemon_that_is_restarted_costs_nothing_either(job: Job) -> None:
    exports = start(job, kinds=ALL_KINDS)
    await_records(job, RECORDS // 4)
    job.end_daemon(signal.SIGTERM)
    job.start_daemon()
    job.await_states("monitoring")
    await_records(job, RECORDS // 4)
    assert job.command("stop").outcome == "ok"
    check_exact(job, exports)


def test_a_killed_rank_is_lost_and_its_database_says_so(job: Job) -> None:
    before = set(os.listdir("/dev/shm"))
    exports = start(job, kinds=ALL_KINDS)
    await_records(job, RECORDS // 6)
    assert set(os.listdir("/dev/shm")) <= before
    victim = job.ranks[1]
    victim.kill()
    killed_s = time.monotonic()
    job.await_states("lost", victim)
    assert time.monotonic() - killed_s < 10
    (path,) = exports.glob(f"msmonitor_{victim.pid}_*.db")
    wait_for(lambda: Database(path).end == "lost", "the end of the lost session")
    database = Database(path)
    assert sum(database.counts().values()) > 0
    assert database.query("PRAGMA integrity_check") == [("ok",)]
    assert database.query("PRAGMA journal_mode") == [("delete",)]
    assert job.command("stop").outcome == "ok"
    assert set(os.listdir("/dev/shm")) <= before
    check_exact(job, exports)


def test_a_database_is_readable_while_it_is_written(job: Job) -> None:
    exports = start(job, kinds=ALL_KINDS)
    await_records(job, RECORDS // 6)
    (path,) = exports.glob(f"msmonitor_{job.ranks[0].pid}_*.db")
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM COMPUTE_TASK_INFO").fetchone()[0] > 0
        await_records(job, RECORDS // 6)
        stopped = job.command("stop")
        assert stopped.outcome == "ok", stopped
    reader.close()
    check_exact(job, exports)
