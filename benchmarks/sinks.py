"""Kernels per CPU second into JSONL and SQLite files.

The baseline are plain writers that handle one record at a time: ``json.dumps`` and a write per
line, or two INSERTs per kernel in one transaction. Both write the same records in the same run.
The time is CPU seconds, because that is what an output takes from the node.

    python benchmarks/sinks.py [KERNELS]
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.sessions import MonitorSettings, ProcessInfo, SessionEnd, SessionInfo
from msmon.sinks.base import Sink
from msmon.sinks.jsonl.sink import JsonlSink
from msmon.sinks.sqlite.schema import COMPUTE_TASK_INFO, TASK
from msmon.sinks.sqlite.sink import SqliteSink

START_NS = 1_790_000_000_000_000_000
BATCH_RECORDS = 8 * 1024 * 1024 * 8 // 10 // DTYPES[ActivityKind.Kernel].itemsize
DISTINCT_NAMES = 200
DEFAULT_KERNELS = 1_000_000
PLAIN_SHARE = 10
"""The plain writers get only every tenth record, so that they don't run for minutes."""

REPETITIONS = 3


def kernel_batches(count: int) -> list[Batch]:
    """Make kernels as one device records them, in batches of one MSPTI buffer each."""
    generator = np.random.default_rng(7)
    names = [f"aclnnMatMul_MatMulV2_{number}" for number in range(DISTINCT_NAMES)]
    strings = ("", "KERNEL_AICORE", "KERNEL_AIVEC", "KERNEL_MIX_AIC", *names)
    records = np.zeros(count, DTYPES[ActivityKind.Kernel])
    records["kind"] = ActivityKind.Kernel
    records["start_ns"] = START_NS + np.cumsum(generator.integers(800, 1200, count))
    records["end_ns"] = records["start_ns"] + generator.integers(300, 800, count).astype(np.uint64)
    records["stream_id"] = generator.integers(2, 6, count)
    records["correlation_id"] = np.arange(count) + 1_000_000
    records["type"] = generator.integers(1, 4, count)
    records["name"] = generator.integers(4, 4 + DISTINCT_NAMES, count)
    return [
        Batch(ActivityKind.Kernel, records[begin : begin + BATCH_RECORDS], strings)
        for begin in range(0, count, BATCH_RECORDS)
    ]


def write_with_sink(sink: Sink, export_type: str, batches: list[Batch], directory: Path) -> None:
    """Write a whole session, with a commit per batch, as an output does under full load."""
    fields = {
        "kinds": "Kernel",
        "log_file": str(directory),
        "export_type": export_type,
        "jsonl_rotate_lines": 500_000,
    }
    process = ProcessInfo("host", 4242, 1, rank=0)
    session = SessionInfo("benchmark", process, MonitorSettings.from_fields(fields), START_NS)
    sink.open_session(session)
    for seq, batch in enumerate(batches, 2):
        sink.write_records("benchmark", seq, batch)
        sink.commit()
    sink.close_session("benchmark", len(batches) + 2, SessionEnd(START_NS, "stop"))
    sink.commit()
    sink.close()


def write_plain_lines(batches: list[Batch], directory: Path) -> None:
    """Make one dict, one ``json.dumps`` and one write per record."""
    with open(directory / "plain.jsonl", "w", encoding="utf-8") as file:
        for batch in batches:
            for row in batch.records:
                fields = {
                    "correlationId": int(row["correlation_id"]),
                    "deviceId": int(row["device_id"]),
                    "endNs": int(row["end_ns"]),
                    "kind": "Kernel",
                    "name": batch.strings[row["name"]],
                    "startNs": int(row["start_ns"]),
                    "streamId": int(row["stream_id"]),
                    "type": batch.strings[row["type"]],
                }
                file.write(json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_plain_rows(batches: list[Batch], directory: Path) -> None:
    """Make two INSERTs per record, and one transaction per batch."""
    connection = sqlite3.connect(directory / "plain.db", isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute(TASK.create_sql)
    connection.execute(COMPUTE_TASK_INFO.create_sql)
    into_task = f"INSERT INTO TASK VALUES ({','.join('?' * len(TASK.columns))})"
    marks = ",".join("?" * len(COMPUTE_TASK_INFO.columns))
    into_info = f"INSERT INTO COMPUTE_TASK_INFO VALUES ({marks})"
    none, task_id = 0xFFFFFFFF, 0
    string_ids: dict[str, int] = {"N/A": 0}
    for batch in batches:
        connection.execute("BEGIN")
        for row in batch.records:
            start_ns, end_ns = int(row["start_ns"]), int(row["end_ns"])
            device, stream = int(row["device_id"]), int(row["stream_id"])
            correlation = int(row["correlation_id"])
            kind = string_ids.setdefault(batch.strings[row["type"]], len(string_ids))
            name = string_ids.setdefault(batch.strings[row["name"]], len(string_ids))
            task = (start_ns, end_ns, device, correlation, task_id, 4242, kind, none, stream)
            connection.execute(into_task, (*task, none, none))
            connection.execute(into_info, (name, task_id, none, none, kind, *([0] * 10)))
            task_id += 1
        connection.execute("COMMIT")
    connection.close()


def records_per_cpu_s(write: Callable[[list[Batch], Path], None], batches: list[Batch]) -> float:
    """Return the kernels per CPU second of one run into a new directory."""
    with tempfile.TemporaryDirectory() as directory:
        started_s = time.process_time()
        write(batches, Path(directory))
        return sum(map(len, batches)) / (time.process_time() - started_s)


def compare(
    name: str,
    with_sink: Callable[[list[Batch], Path], None],
    plain: Callable[[list[Batch], Path], None],
    batches: list[Batch],
) -> None:
    """Run both in turns, and print the medians and their ratio."""
    few = batches[: max(1, len(batches) // PLAIN_SHARE)]
    ours, plains = [], []
    for _ in range(REPETITIONS):
        ours.append(records_per_cpu_s(with_sink, batches))
        plains.append(records_per_cpu_s(plain, few))
    print(f"{name}: {median(ours):,.0f} kernels/s, record by record {median(plains):,.0f}")
    print(f"RATIO {name} {median(ours) / median(plains):.1f}")


def main() -> None:
    """Compare both file formats with their plain writers."""
    batches = kernel_batches(int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_KERNELS)
    compare(
        "jsonl",
        lambda given, directory: write_with_sink(JsonlSink(), "Jsonl", given, directory),
        write_plain_lines,
        batches,
    )
    compare(
        "sqlite",
        lambda given, directory: write_with_sink(SqliteSink(), "DB", given, directory),
        write_plain_rows,
        batches,
    )


if __name__ == "__main__":
    main()
