"""The database of a session: rows, constants, continuation, two writers, full disks."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msmon.errors import SinkError
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind, MarkerFlag, SourceKind
from msmon.records.markers import MarkerPairing
from msmon.sessions import Gap, SessionEnd, SessionInfo
from msmon.sinks.base import CommitFailed, Progress
from msmon.sinks.exports import FileIdentity
from msmon.sinks.sqlite import session_file as sqlite_session
from msmon.sinks.sqlite.sink import SqliteSink

END = SessionEnd(1_790_000_100_000_000_000, "stop")
MAX = 0xFFFFFFFF


@pytest.fixture
def sink() -> Iterator[SqliteSink]:
    sink = SqliteSink()
    yield sink
    sink.close()


def query(path: str | Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def write(sink: SqliteSink, session: SessionInfo, *batches: Batch) -> str:
    """Write batches as one finished session; return the file."""
    (path,) = sink.open_session(session).files
    for seq, batch in enumerate(batches, 2):
        sink.write_records(session.session_id, seq, batch)
    sink.close_session(session.session_id, len(batches) + 2, END)
    sink.commit()
    return path


def test_kernels_fill_task_and_compute_task_info(
    sink: SqliteSink, tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    batch = kernels(1000)
    path = write(sink, session(tmp_path, rank=3), batch)
    rows = query(
        path,
        "SELECT t.startNs, t.endNs, t.deviceId, t.connectionId, t.streamId, t.globalPid, n.value,"
        " k.value FROM TASK t JOIN COMPUTE_TASK_INFO c ON c.globalTaskId = t.globalTaskId"
        " JOIN STRING_IDS n ON n.id = c.name JOIN STRING_IDS k ON k.id = t.taskType"
        " ORDER BY t.globalTaskId",
    )
    fields = ("start_ns", "end_ns", "device_id", "correlation_id", "stream_id")
    expected = zip(
        *(batch.records[field].tolist() for field in fields),
        [4003] * 1000,
        batch.text("name"),
        batch.text("type"),
    )
    assert rows == list(expected)
    assert Path(path).name.startswith("msmonitor_4003_")
    assert Path(path).name.endswith("_3.db")


def test_every_column_and_constant_of_a_communication_row(
    sink: SqliteSink, tmp_path: Path, batch: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    operation = {
        "data_type": 4,
        "count": 2**63 + 5,
        "device_id": 1,
        "start_ns": 10,
        "end_ns": 30,
        "alg_type": "RING",
        "name": "hcom_allReduce_",
        "comm_name": "group_name_0",
        "correlation_id": 77,
    }
    path = write(sink, session(tmp_path), batch(ActivityKind.Communication, [operation]))
    ((name, *numbers),) = query(
        path,
        "SELECT n.value, c.startNs, c.endNs, c.connectionId, opId, relay, retry, dataType, count,"
        " deviceId FROM COMMUNICATION_OP c JOIN STRING_IDS n ON n.id = c.opName",
    )
    assert name == "hcom_allReduce__612_0_1"
    assert numbers == [10, 30, 77, 0, 0, 0, 4, 2**63 + 5 - 2**64, 1]
    assert query(path, "SELECT rankId, deviceId FROM RANK_DEVICE_MAP") == [(0, 1)]
    assert query(path, "SELECT * FROM NPU_INFO") == [(1, "UNKNOWN")]
    meta = dict(query(path, "SELECT name, value FROM META_DATA"))
    assert meta["SCHEMA_VERSION"] == "1.2.0"
    assert meta["msmon_session_end"] == "stop"


def test_levels_of_one_call_do_not_double_it(
    sink: SqliteSink, tmp_path: Path, batch: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    call = {"start_ns": 1, "end_ns": 2, "process_id": 5, "thread_id": 6, "correlation_id": 9}
    kinds = (
        ActivityKind.API,
        ActivityKind.NodeAPI,
        ActivityKind.AclAPI,
        ActivityKind.RuntimeAPI,
    )
    path = write(
        sink,
        session(tmp_path, kinds="API,NodeAPI,AclAPI,RuntimeAPI"),
        *(batch(kind, [{**call, "name": kind.name}]) for kind in kinds),
    )
    rows = query(path, "SELECT type, connectionId, globalTid FROM CANN_API ORDER BY type")
    thread = (5 << 32) | 6
    assert rows == [
        (5000, 9 + (5000 << 40), thread),
        (10000, 9, thread),
        (20000, 9 + (20000 << 40), thread),
    ]
    assert query(path, "SELECT connectionId FROM MSMON_NODE_API") == [(9,)]


def test_ranges_give_events_tasks_and_step_times(
    sink: SqliteSink, tmp_path: Path, job_rank: Callable[..., Any], session: Callable[..., Any]
) -> None:
    rank = job_rank(1, 4, 2)
    path = write(sink, session(tmp_path, rank=1), rank.step(7)[0], rank.step(8)[0])
    assert [step for (step,) in query(path, "SELECT id FROM STEP_TIME")] == [7, 8]
    rows = query(
        path,
        "SELECT s.value, e.eventType, t.startNs - e.startNs FROM MSTX_EVENTS e"
        " JOIN TASK t ON t.connectionId = e.connectionId JOIN STRING_IDS s ON s.id = e.message"
        " ORDER BY e.startNs LIMIT 3",
    )
    assert rows == [("step 7", 2, 50_000), ("forward", 2, 50_000), ("backward", 2, 50_000)]


def test_other_kinds_have_tables(
    sink: SqliteSink, tmp_path: Path, batch: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    device = {"start_ns": 1, "end_ns": 2, "device_id": 0, "stream_id": MAX}
    path = write(
        sink,
        session(tmp_path),
        batch(ActivityKind.MemCpy, [{**device, "copy_kind": 2, "size_bytes": 64, "is_async": 1}]),
        batch(ActivityKind.MemSet, [{**device, "value": 3, "size_bytes": 32}]),
        batch(ActivityKind.Memory, [{**device, "address": 2**64 - 1, "size_bytes": 16}]),
        batch(
            ActivityKind.Hccl,
            [
                {**device, "bandwidth_gb_per_s": speed, "name": "send"}
                for speed in (1.5, math.inf, -math.inf, math.nan)
            ],
        ),
        batch(ActivityKind.ExternalCorrelation, [{"external_id": 4, "correlation_id": 5}]),
    )
    copy = "SELECT size, memcpyOperation, streamId FROM MEMCPY_INFO JOIN TASK USING (globalTaskId)"
    assert query(path, copy) == [(64, 1, -1)]
    assert query(path, "SELECT size, value FROM MSMON_MEMSET") == [(32, 3)]
    assert query(path, "SELECT address, size FROM MSMON_MEMORY") == [(-1, 16)]
    assert query(path, "SELECT bandwidth FROM MSMON_HCCL") == [(1.5,), (None,), (None,), (None,)]
    assert query(path, "SELECT * FROM MSMON_EXTERNAL_CORRELATION") == [(0, 4, 5)]


def test_record_tables_come_with_their_first_row_and_names_at_once(
    sink: SqliteSink, tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    (path,) = sink.open_session(session(tmp_path)).files
    tables = {name for (name,) in query(path, "SELECT name FROM sqlite_master")}
    assert {"STRING_IDS", "META_DATA", "CONNECTION_IDS", "PYTORCH_API"} <= tables
    assert not {"TASK", "COMMUNICATION_OP", "STEP_TIME"} & tables
    sink.write_records("session-0", 2, kernels(10))
    sink.commit()
    unnamed = "SELECT count(*) FROM COMPUTE_TASK_INFO WHERE name NOT IN (SELECT id FROM STRING_IDS)"
    assert query(path, unnamed) == [(0,)]


def test_a_session_goes_on_in_its_file_where_it_was_committed(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    kept = Progress()
    first, second = SqliteSink(), SqliteSink()
    batches = [kernels(100, seed) for seed in range(3)]
    opened = first.open_session(session(tmp_path), kept)
    first.write_records("session-0", 2, batches[0])
    first.commit()
    first.write_records("session-0", 3, batches[1])
    first.close()  # as a crash: batch 3 was not committed
    resumed = second.open_session(session(tmp_path), kept)
    assert (resumed.files, resumed.written_seq) == (opened.files, 2)
    for seq, later in enumerate(batches[1:], 3):
        second.write_records("session-0", seq, later)
    second.commit()
    second.close()
    starts = [start for (start,) in query(opened.files[0], "SELECT startNs FROM TASK")]
    assert starts == np.concatenate([item.records["start_ns"] for item in batches]).tolist()
    ids = query(opened.files[0], "SELECT globalTaskId FROM TASK")
    assert ids == [(number,) for number in range(300)]
    repeated = "SELECT value FROM STRING_IDS GROUP BY id HAVING count(*) > 1"
    assert query(opened.files[0], repeated) == []


def test_a_session_of_version_0_1_0_numbers_its_collectives_on(
    tmp_path: Path, batch: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    def collective(start_ns: int) -> Batch:
        row = {"start_ns": start_ns, "end_ns": start_ns + 5, "name": "allReduce", "comm_name": "g"}
        return batch(ActivityKind.Communication, [row])

    kept = Progress()
    first, second = SqliteSink(), SqliteSink()
    (path,) = first.open_session(session(tmp_path), kept).files
    first.write_records("session-0", 2, collective(10))
    first.commit()
    first.close()
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM MSMON_STATE WHERE name = 'collective_numbers'")
        earlier = '[{"g": [0, 1]}, [], [], []]'
        database.execute("INSERT INTO MSMON_STATE VALUES ('collectives', ?)", (earlier,))
    second.open_session(session(tmp_path), kept)
    second.write_records("session-0", 3, collective(20))
    second.commit()
    second.close()
    names = "SELECT value FROM STRING_IDS JOIN COMMUNICATION_OP ON id = opName ORDER BY startNs"
    assert [name.rsplit("_", 2)[1] for (name,) in query(path, names)] == ["0", "1"]


def test_a_file_that_can_not_be_read_now_is_not_replaced_by_a_second_one(
    tmp_path: Path,
    kernels: Callable[..., Batch],
    session: Callable[..., SessionInfo],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Progress()

    def fail(path: Path) -> FileIdentity:
        raise OSError(errno.EIO, "unable to open database file")

    first, second = SqliteSink(), SqliteSink()
    (path,) = first.open_session(session(tmp_path), kept).files
    first.write_records("session-0", 2, kernels(10))
    first.commit()
    first.close()
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_session, "identity_at", fail)
        with pytest.raises(SinkError, match="unable to open"):
            second.open_session(session(tmp_path), kept)
    resumed = second.open_session(session(tmp_path), kept)
    assert (resumed.files, resumed.written_seq) == ((path,), 2)
    second.close()


def test_unreadable_files_of_the_same_pid_keep_no_session_from_its_own(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., SessionInfo]
) -> None:
    opened = session(tmp_path)
    kept = Progress()
    for number, content in enumerate((b"", b"SQLite format 3\0" + b"x" * 5000, b"no database")):
        name = f"msmonitor_{opened.process.pid}_2026010100000000{number}_0.db"
        (tmp_path / name).write_bytes(content)
    (tmp_path / f"msmonitor_{opened.process.pid}_20260101000000009_0.db").mkdir()
    for seq in (2, 3):
        sink = SqliteSink()
        (path,) = sink.open_session(opened, kept).files
        sink.write_records("session-0", seq, kernels(10))
        sink.commit()
        sink.close()
    assert query(path, "SELECT count(*) FROM TASK") == [(20,)]


def test_a_file_that_can_not_be_begun_is_removed_again(
    tmp_path: Path, session: Callable[..., SessionInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, identity: FileIdentity) -> sqlite3.Connection:
        raise SinkError("database or disk is full")

    monkeypatch.setattr(sqlite_session, "open_for_writing", fail)
    with pytest.raises(SinkError, match="full"):
        SqliteSink().open_session(session(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_range_open_at_a_restart_is_completed_after_it(
    tmp_path: Path, batch: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    kept = Progress()

    def marker(flag: int, time_ns: int, name: str) -> Batch:
        row = {"flag": flag, "source_kind": SourceKind.HOST, "timestamp_ns": time_ns, "id": 1}
        return batch(ActivityKind.Marker, [{**row, "name": name}])

    first, second = SqliteSink(), SqliteSink()
    (path,) = first.open_session(session(tmp_path), kept).files
    first.write_records("session-0", 2, marker(MarkerFlag.START, 10, "step 5"))
    first.commit()
    first.close()
    unpaired = "SELECT value FROM MSMON_STATE WHERE name = 'unpaired_markers'"
    assert query(path, unpaired) == [(1,)]
    second.open_session(session(tmp_path), kept)
    second.write_records("session-0", 3, marker(MarkerFlag.END, 90, ""))
    second.commit()
    second.close()
    assert query(path, "SELECT id, startNs, endNs FROM STEP_TIME") == [(5, 10, 90)]
    assert query(path, unpaired) == [(0,)]


def host_markers(flag: int, numbers: range, time_ns: int) -> Batch:
    records = np.zeros(len(numbers), DTYPES[ActivityKind.Marker])
    records["kind"], records["flag"] = ActivityKind.Marker, flag
    records["source_kind"] = SourceKind.HOST
    records["timestamp_ns"], records["id"] = time_ns + np.arange(len(numbers)), numbers
    if flag == MarkerFlag.START:
        records["name"] = 1 + np.array(numbers) % 3000
    return Batch(ActivityKind.Marker, records, ("", *(f"range {name}" for name in range(3000))))


def test_a_commit_writes_little_of_many_open_ranges_and_all_go_on_after_a_restart(
    tmp_path: Path, session: Callable[..., Any]
) -> None:
    def written_bytes() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["wchar"])

    kept = Progress()
    first, second = SqliteSink(), SqliteSink()
    (path,) = first.open_session(session(tmp_path), kept).files
    for seq, begin in enumerate(range(0, 60_000, 5000), 2):
        batch = host_markers(MarkerFlag.START, range(begin, begin + 5000), 10**6 + begin)
        first.write_records("session-0", seq, batch)
    first.commit()
    before = written_bytes()
    first.write_records("session-0", 50, host_markers(MarkerFlag.START, range(60_000, 60_100), 10))
    first.write_records("session-0", 51, host_markers(MarkerFlag.END, range(59_000, 59_010), 10**8))
    first.commit()
    assert written_bytes() - before < 1 << 20
    first.write_records("session-0", 52, host_markers(MarkerFlag.END, range(30_000), 10**8))
    first.close()  # as a crash: the last message was not committed
    second.open_session(session(tmp_path), kept)
    for seq, ended in ((52, range(59_000)), (53, range(59_010, 60_100))):
        second.write_records("session-0", seq, host_markers(MarkerFlag.END, ended, 10**8))
    second.commit()
    second.close()
    assert query(path, "SELECT count(*), count(DISTINCT connectionId) FROM MSTX_EVENTS") == [
        (60_100, 60_100)
    ]
    misnamed = (
        "SELECT count(*) FROM MSTX_EVENTS JOIN STRING_IDS ON id = message"
        " WHERE value != 'range ' || ((connectionId - 4000000000) % 3000)"
    )
    assert query(path, misnamed) == [(0,)]
    pieces = "SELECT count(*) FROM MSMON_STATE WHERE name LIKE 'waiting_markers %'"
    assert query(path, pieces) == [(0,)]


def test_open_ranges_kept_by_version_0_1_0_go_on(
    tmp_path: Path, session: Callable[..., Any]
) -> None:
    kept = Progress()
    first, second = SqliteSink(), SqliteSink()
    (path,) = first.open_session(session(tmp_path), kept).files
    first.commit()
    first.close()
    pairing = MarkerPairing()
    pairing.add(host_markers(MarkerFlag.START, range(5), 10))
    frames = zip(("marker_records", "marker_texts"), pairing.to_frames())
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM MSMON_STATE WHERE name LIKE 'waiting_%'")
        database.executemany("INSERT INTO MSMON_STATE VALUES (?,?)", frames)
    second.open_session(session(tmp_path), kept)
    second.write_records("session-0", 2, host_markers(MarkerFlag.END, range(5), 10**8))
    second.commit()
    second.close()
    assert query(path, "SELECT count(*) FROM MSTX_EVENTS") == [(5,)]
    assert query(path, "SELECT count(*) FROM MSMON_STATE WHERE name LIKE 'marker_%'") == [(0,)]


def test_two_daemons_on_one_file_are_noticed(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    kept = Progress()
    first, second = SqliteSink(), SqliteSink()
    first.open_session(session(tmp_path), kept)
    second.open_session(session(tmp_path), kept)
    second.write_records("session-0", 2, kernels(10))
    second.commit()
    first.write_records("session-0", 2, kernels(10))
    with pytest.raises(CommitFailed, match="another daemon"):
        first.commit()
    first.close()
    second.close()


def test_a_reader_costs_nothing_and_a_writer_only_delays(
    sink: SqliteSink, tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    kept = Progress()
    (path,) = sink.open_session(session(tmp_path), kept).files
    viewer = sqlite3.connect(path, isolation_level=None)
    viewer.execute("BEGIN")
    viewer.execute("SELECT count(*) FROM META_DATA").fetchall()
    sink.write_records("session-0", 2, kernels(10))
    sink.commit()
    viewer.execute("COMMIT")
    viewer.execute("BEGIN IMMEDIATE")
    with pytest.raises(SinkError, match="locked"):
        sink.write_records("session-0", 3, kernels(10))
    viewer.execute("COMMIT")
    viewer.close()
    assert sink.open_session(session(tmp_path), kept).written_seq == 2
    sink.write_records("session-0", 3, kernels(10))
    sink.commit()
    assert query(path, "SELECT count(*) FROM TASK") == [(20,)]


def test_a_full_disk_rolls_back_and_recovers(
    sink: SqliteSink, tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    kept = Progress()
    (path,) = sink.open_session(session(tmp_path), kept).files
    connection = sink._open["session-0"]._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(SinkError, match="full"):
        sink.write_records("session-0", 2, kernels(20_000))
    assert sink.open_session(session(tmp_path), kept).written_seq == 0
    sink.write_records("session-0", 2, kernels(20_000))
    sink.commit()
    assert query(path, "SELECT count(*) FROM TASK") == [(20_000,)]


def test_a_commit_for_others_does_not_take_rolled_back_rows_for_written(
    sink: SqliteSink, tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    kept = Progress()
    (path,) = sink.open_session(session(tmp_path), kept).files
    connection = sink._open["session-0"]._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 20}")
    sink.write_records("session-0", 2, kernels(100))
    with pytest.raises(SinkError, match="full"):
        sink.write_records("session-0", 3, kernels(20_000))
    connection.execute(f"PRAGMA max_page_count = {1 << 30}")
    with pytest.raises(CommitFailed):
        sink.commit()
    assert sink.open_session(session(tmp_path), kept).written_seq == 0
    sink.write_records("session-0", 2, kernels(100))
    sink.commit()
    assert query(path, "SELECT count(*) FROM TASK") == [(100,)]


def test_gaps_and_notes_are_in_the_file(
    sink: SqliteSink, tmp_path: Path, session: Callable[..., Any]
) -> None:
    (path,) = sink.open_session(session(tmp_path)).files
    sink.write_gap("session-0", 2, Gap("slots", 5, 9, {"Kernel": 3}, "no free buffer"))
    sink.write_gap("session-0", 3, Gap("decode", 5, 9, None))
    sink.write_note("session-0", 4, "parallel_group_info", '{"g":1}')
    sink.commit()
    assert query(path, "SELECT stage, kind, records FROM MSMON_GAPS") == [
        ("slots", "Kernel", 3),
        ("decode", "", None),
    ]
    meta = dict(query(path, "SELECT name, value FROM META_DATA"))
    assert meta["parallel_group_info"] == '{"g":1}'
    assert meta["msmon_session_end"] == "unknown"


def test_no_write_ahead_log_stays_after_the_end(
    sink: SqliteSink, tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    path = write(sink, session(tmp_path), kernels(10))
    assert os.listdir(tmp_path) == [Path(path).name]
