"""Every record that a job makes is in its outputs once, whatever happens to the daemon."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from exports import Database, Event, JsonLines, databases
from fixtures.shared_memory import shared_memory_files
from job import ALL_KINDS, Job, Operators, Rank, wait_for

pytestmark = pytest.mark.xdist_group("end_to_end")

SIMULATION = "rate=6000,step_ms=100,preload=1,seed=5"
RECORDS = 4_000
"""For each rank: enough for several flushes, windows and commits."""


class Session:
    """One npu-monitor run in all ranks of a job, which goes on after it.

    It is exported as DB, and the daemon's own output writes JSONL.
    """

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        self.exports = job.directory / f"db{number}"
        self._ranks = list(job.living)
        self._earlier = set(self._lines_directory.glob("*"))
        self._recorded_before = {rank.pid: rank.recorded_so_far() for rank in self._ranks}

    @property
    def _lines_directory(self) -> Path:
        return self.job.directory / "lines"

    def start(self, **fields: Any) -> None:
        export = {"log_file": str(self.exports), "export_type": "DB"}
        reply = self.job.command("start", report_interval_s=1.0, **export, **fields)
        assert reply.outcome == "ok", reply

    def stop(self, vanished: Sequence[Rank] = ()) -> None:
        """Stop; every living rank says how many records it has, and ``vanished`` are named."""
        reply = self.job.command("stop")
        assert reply.outcome == ("partial" if vanished else "ok"), reply
        rows = {row.pid: row for row in reply.rows}
        for rank in vanished:
            assert "vanished" in rows.pop(rank.pid).text
        assert set(rows) == {rank.pid for rank in self.job.living}
        for row in rows.values():
            check_account(row.text)
        self.job.await_states("idle")

    def await_records(self, count: int) -> None:
        """Wait until every living rank has kept ``count`` records since this call."""

        def kept() -> dict[int, int]:
            rows = self.job.rows()
            return {
                rank.pid: sum(rows[rank.pid].kept.values()) if rank.pid in rows else 0
                for rank in self.job.living
            }

        before = wait_for(kept, "status")
        wait_for(lambda: all(now >= before[pid] + count for pid, now in kept().items()), "records")

    def database(self, rank: Rank) -> Database:
        return databases(self.exports)[rank.pid]

    def lines(self, rank: Rank) -> JsonLines:
        return JsonLines(set(self._lines_directory.glob("*.jsonl")) - self._earlier, rank.pid)

    def recorded(self, rank: Rank) -> Operators:
        """Return (kind, name) → (records, total ns) of what the simulation recorded meanwhile."""
        before = self._recorded_before[rank.pid]
        return {
            key: (count - before.get(key, (0, 0))[0], total_ns - before.get(key, (0, 0))[1])
            for key, (count, total_ns) in rank.recorded_so_far().items()
            if count > before.get(key, (0, 0))[0]
        }

    def check_exact(self) -> None:
        """Check that all counts agree, and that both formats hold the same records as often."""
        rows = self.job.await_states("idle")
        for rank in self.job.living:
            database, lines = self.database(rank), self.lines(rank)
            counts = database.counts()
            recorded: Counter[str] = Counter()
            for (kind, _), (count, _) in self.recorded(rank).items():
                recorded[kind] += count
            assert counts == recorded
            assert counts == rows[rank.pid].kept
            assert (database.gaps(), lines.gaps()) == ([], [])
            assert database.events() == lines.events()
            counts["Marker"] -= database.unpaired_markers
            assert lines.counts() == +counts
            assert (database.end, database.doubled()) == ("stopped", 0)


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    directory = Path(tempfile.mkdtemp(prefix="msmon-")).resolve()
    with Job(directory, ranks=4, simulation=SIMULATION) as started:
        started.daemon_options = (
            *("--heartbeat-s", "0.25", "--sink", f"jsonl:path={directory / 'lines'}"),
            *("--sink", f"metrics-json:path={directory / 'windows'}"),
        )
        started.start_daemon()
        started.start_ranks()
        yield started
    shutil.rmtree(directory)


@pytest.fixture
def session(job: Job, request: pytest.FixtureRequest) -> Session:
    number = request.session.items.index(request.node)
    return Session(job, number)


def totals(events: Counter[Event]) -> Operators:
    """Return (kind, name) → (records, total ns)."""
    result: dict[tuple[str, str], tuple[int, int]] = {}
    for event, times in events.items():
        count, total_ns = result.get((event.kind, event.name), (0, 0))
        duration_ns = event.end_ns - event.start_ns
        result[event.kind, event.name] = (count + times, total_ns + times * duration_ns)
    return result


def check_account(text: str) -> None:
    """Check that the numbers add up that a stop tells of one process.

    Example: "monitoring stopped: 9 records recorded = 7 sent + 2 filtered out; jsonl: 7 written".
    """
    recorded, *outputs = re.sub(r"; \d+ ranges still open", "", text).split("; ")
    total, *parts = map(int, re.findall(r"(\d+) (?:records|sent|filtered)", recorded))
    assert total == sum(parts)
    assert [output.partition(":")[0] for output in outputs] == ["jsonl", "sqlite"]
    for output in outputs:
        assert sum(map(int, re.findall(r"(\d+) written", output))) == parts[0], text
        assert "not written" not in output


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_an_end_of_the_daemon_costs_nothing_and_doubles_nothing(
    session: Session, how: signal.Signals
) -> None:
    session.start(kinds=ALL_KINDS)
    session.await_records(RECORDS // 4)
    session.job.end_daemon(how)
    session.job.start_daemon()
    session.job.await_states("monitoring")
    session.await_records(RECORDS // 8)
    session.stop()
    session.check_exact()


def test_ledger_daemon_database_and_lines_agree(session: Session) -> None:
    session.start(kinds=ALL_KINDS)
    session.await_records(RECORDS)
    session.stop()
    session.check_exact()
    for rank in session.job.living:
        written = totals(session.database(rank).events())
        timed = {key: value for key, value in session.recorded(rank).items() if key[1]}
        without_markers = {key: value for key, value in timed.items() if key[0] != "Marker"}
        assert without_markers.items() <= written.items()
        assert {kind for kind, _ in without_markers} >= {"Kernel", "API", "Communication", "Hccl"}


def test_a_filtered_session_holds_exactly_the_matching_records(session: Session) -> None:
    session.start(filter="Kernel:MatMul,Adam;Communication:allReduce")
    session.await_records(RECORDS // 8)
    session.stop()
    for rank in session.job.living:
        expected = {
            (kind, name): value
            for (kind, name), value in session.recorded(rank).items()
            if (kind == "Kernel" and ("MatMul" in name or "Adam" in name))
            or (kind == "Communication" and "allReduce" in name)
        }
        events = session.database(rank).events()
        assert totals(events) == expected
        assert events == session.lines(rank).events()


def test_a_database_can_be_read_while_it_is_written(session: Session) -> None:
    session.start(kinds=ALL_KINDS)
    session.await_records(RECORDS // 4)
    path = session.database(session.job.living[0]).path
    wait_for(
        lambda: session.database(session.job.living[0]).counts()["Kernel"], "its first kernels"
    )
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM COMPUTE_TASK_INFO").fetchone()[0] > 0
        session.await_records(RECORDS // 4)
    session.stop()
    session.check_exact()


def test_a_killed_rank_is_lost_and_its_database_says_so(session: Session) -> None:
    before = shared_memory_files()
    session.start(kinds=ALL_KINDS)
    session.await_records(RECORDS // 8)
    assert shared_memory_files() <= before
    victim = session.job.living[1]
    victim.kill()
    assert session.database(victim).end == "unknown"
    killed_s = time.monotonic()
    session.job.await_states("lost", victim)
    assert time.monotonic() - killed_s < 10
    wait_for(lambda: session.database(victim).end == "lost", "the end of the lost session")
    database = session.database(victim)
    assert sum(database.counts().values()) > 0
    assert database.query("PRAGMA integrity_check") == [("ok",)]
    session.stop([victim])
    session.check_exact()
    assert shared_memory_files() <= before


def test_nothing_but_complete_files_stays_behind(job: Job) -> None:
    job.end_daemon()
    files = list(job.directory.glob("db*/*"))
    assert {path.suffix for path in files} == {".db"}
    assert {path.suffix for path in (job.directory / "lines").iterdir()} == {".jsonl"}
    for path in files:
        assert Database(path).query("PRAGMA journal_mode") == [("delete",)]
