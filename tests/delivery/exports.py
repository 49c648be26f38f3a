"""Reads exported files with sqlite3 and json, without msmon's own readers.

All counts are activity records: a range is two of them, its start and its end marker.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_API_TYPES = {20000: "AclAPI", 5000: "RuntimeAPI", 10000: "API"}

_TABLES = {
    "Communication": "COMMUNICATION_OP",
    "Hccl": "MSMON_HCCL",
    "Memory": "MSMON_MEMORY",
    "NodeAPI": "MSMON_NODE_API",
}
"""Tables that have a row with both times for each record."""

_TASK_TABLES = {"Kernel": "COMPUTE_TASK_INFO", "MemSet": "MSMON_MEMSET", "MemCpy": "MEMCPY_INFO"}
"""Tables whose times are in the table TASK."""

_NAMES = {"Communication": "opType", "Hccl": "name", "NodeAPI": "name", "Kernel": "name"}
"""Column with the id of the record's name, for kinds that have one."""


class Event(NamedTuple):
    """A record or a range, as both formats hold it. ``name`` may be ""."""

    kind: str
    start_ns: int
    end_ns: int
    name: str


class Database:
    """One exported database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tables = {name for (name,) in self.query("SELECT name FROM sqlite_master")}

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of one statement."""
        with contextlib.closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as file:
            return file.execute(sql).fetchall()

    @property
    def pid(self) -> int:
        return int(self.path.name.split("_")[1])

    @property
    def end(self) -> str:
        """How the session ended, for example "stopped"."""
        ((reason,),) = self.query("SELECT value FROM META_DATA WHERE name='msmon_session_end'")
        return str(reason)

    def counts(self) -> Counter[str]:
        """Return kind name → records."""
        counts: Counter[str] = Counter()
        for kind, table in {**_TABLES, **_TASK_TABLES}.items():
            counts[kind] = self._count(f"SELECT count(*) FROM {table}", table)
        if "CANN_API" in self._tables:
            for number, count in self.query("SELECT type, count(*) FROM CANN_API GROUP BY type"):
                counts[_API_TYPES[number]] = count
        ranges = self._count("SELECT count(*) FROM MSTX_EVENTS WHERE eventType=2", "MSTX_EVENTS")
        marks = self._count("SELECT count(*) FROM MSTX_EVENTS WHERE eventType=0", "MSTX_EVENTS")
        device = self._count(
            "SELECT count(*) FROM TASK WHERE taskType=(SELECT id FROM STRING_IDS "
            "WHERE value='MsTx')",
            "TASK",
        )
        counts["Marker"] = 2 * (ranges + device) + marks + self.unpaired_markers
        return +counts

    @property
    def unpaired_markers(self) -> int:
        """Number of marker records without their counterpart."""
        rows = self.query("SELECT value FROM MSMON_STATE WHERE name='unpaired_markers'")
        return int(rows[0][0]) if rows else 0

    def doubled(self) -> int:
        """Return how many kernels too many the file holds, because some are there twice."""
        if "COMPUTE_TASK_INFO" not in self._tables:
            return 0
        return self._count(
            "SELECT count(*) - count(DISTINCT connectionId) FROM TASK WHERE globalTaskId IN "
            "(SELECT globalTaskId FROM COMPUTE_TASK_INFO)",
            "TASK",
        )

    def gaps(self) -> list[tuple[str, str, int | None, str]]:
        """Return (stage, kind name, records or None if unknown, reason) of each gap."""
        return self.query("SELECT stage, kind, records, reason FROM MSMON_GAPS")

    def events(self) -> Counter[Event]:
        """Return every record with its times and name, and how often it is there."""
        return Counter(self._events())

    def _events(self) -> Iterator[Event]:
        texts = dict(self.query("SELECT id, value FROM STRING_IDS"))
        for kind, table in _TABLES.items():
            if table in self._tables:
                name = _NAMES.get(kind, "NULL")
                for start, end, text in self.query(f"SELECT startNs, endNs, {name} FROM {table}"):
                    yield Event(kind, start, end, texts.get(text, ""))
        for kind, table in _TASK_TABLES.items():
            if table in self._tables:
                name = f"{table}.{_NAMES[kind]}" if kind in _NAMES else "NULL"
                sql = f"SELECT startNs, endNs, {name} FROM {table} JOIN TASK USING (globalTaskId)"
                for start, end, text in self.query(sql):
                    yield Event(kind, start, end, texts.get(text, ""))
        if "CANN_API" in self._tables:
            for number, start, end, text in self.query(
                "SELECT type, startNs, endNs, name FROM CANN_API"
            ):
                yield Event(_API_TYPES[number], start, end, texts[text])
        if "MSTX_EVENTS" in self._tables:
            for start, end, text in self.query("SELECT startNs, endNs, message FROM MSTX_EVENTS"):
                yield Event("Marker", start, end, texts[text])
        for start, end in self.query(
            "SELECT startNs, endNs FROM TASK WHERE taskType="
            "(SELECT id FROM STRING_IDS WHERE value='MsTx')"
        ):
            yield Event("DeviceMarker", start, end, "")

    def _count(self, sql: str, table: str) -> int:
        if table not in self._tables:
            return 0
        ((count,),) = self.query(sql)
        return int(count)


class JsonLines:
    """Those of the given JSONL files that belong to one process."""

    def __init__(self, paths: Iterable[Path], pid: int) -> None:
        self.lines: list[dict[str, Any]] = [
            json.loads(line)
            for path in sorted(paths)
            if path.name.startswith(f"msmonitor_{pid}_")
            for line in path.read_bytes().splitlines()
        ]

    def counts(self) -> Counter[str]:
        """Return kind name → records, without markers that have no counterpart."""
        counts: Counter[str] = Counter()
        for line in self._records():
            whole_range = line["kind"] == "Marker" and line["startNs"] != line["endNs"]
            counts[line["kind"]] += 2 if whole_range else 1
        return counts

    def gaps(self) -> list[dict[str, Any]]:
        """Return the lines of the kind gap."""
        return [line for line in self.lines if line["kind"] == "gap"]

    def events(self) -> Counter[Event]:
        """Return every record with its times and name, and how often it is there."""
        return Counter(
            Event("DeviceMarker", line["startNs"], line["endNs"], "")
            if line.get("sourceKind") == "Device"
            else Event(line["kind"], line["startNs"], line["endNs"], line.get("name", ""))
            for line in self._records()
        )

    def _records(self) -> Iterator[dict[str, Any]]:
        return (line for line in self.lines if line["kind"] not in ("gap", "rank_device_map"))


class WindowLines:
    """What the output ``metrics-json`` wrote of one process.

    A window may come again after a restart of the daemon, or grow where the daemon closed it too
    early: the last line of an operator counts.
    """

    def __init__(self, path: Path, pid: int) -> None:
        self._rows: dict[tuple[Any, ...], int] = {}
        self._kinds: dict[tuple[Any, ...], str] = {}
        self.gaps: list[dict[str, Any]] = []
        """The lines of the kind gap."""
        sessions: set[str] = set()
        gaps = []
        for text in path.read_bytes().splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # a daemon that was killed has torn it; the next one gets it again
            if line["kind"] == "gap":
                gaps.append(line)
            elif line["pid"] == pid:
                sessions.add(line["session"])
                if "name" not in line:
                    continue  # of the steps or of a device
                names = ("session", "window", "kind", "device", "name", "domain", "size_class")
                key = tuple(line.get(name) for name in names)
                self._rows[key] = line["count"]
                self._kinds[key] = line["kind"]
        self.gaps = [gap for gap in gaps if gap["session"] in sessions]

    def counts(self) -> Counter[str]:
        """Return kind name → records; of markers, ranges."""
        counts: Counter[str] = Counter()
        for key, count in self._rows.items():
            counts[self._kinds[key]] += count
        return counts


def databases(directory: Path) -> dict[int, Database]:
    """Return pid → database of every process that exported into a directory."""
    found = [Database(path) for path in sorted(directory.glob("*.db"))]
    assert len({database.pid for database in found}) == len(found), "a session has two files"
    return {database.pid: database for database in found}
