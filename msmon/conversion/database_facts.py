"""What a database file says about its session, besides the records."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msmon.records.kinds import ActivityKind
from msmon.sinks.sqlite import schema
from msmon.sinks.sqlite.file import open_for_reading

API_KINDS_OF_LEVELS = {
    10000: ActivityKind.API,
    20000: ActivityKind.AclAPI,
    5000: ActivityKind.RuntimeAPI,
}
"""``CANN_API.type`` → kind. Calls of level "node" may have come from kind NodeAPI as well."""


@dataclass
class Facts:
    """Facts of one file; what is missing or damaged keeps its default.

    ``shifted_levels``: levels whose connection ids hold the level above the correlation id.
    """

    tables: frozenset[str]
    strings: dict[int, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    start_ns: int = 0
    end_ns: int = 0
    host: str = ""
    rank: int | None = None
    pid: int | None = None
    levels: frozenset[int] = frozenset()
    shifted_levels: frozenset[int] = frozenset()
    problems: list[str] = field(default_factory=list)

    @property
    def api_kinds(self) -> frozenset[ActivityKind]:
        """Kinds of the calls in CANN_API."""
        known = API_KINDS_OF_LEVELS
        return frozenset(known[level] for level in self.levels if level in known)


def open_database(path: Path) -> sqlite3.Connection:
    """Open for reading, leaving nothing beside the file. Raises sqlite3.Error.

    Without a write-ahead log nobody writes it, and it can be read as it lies there.
    """
    if path.with_name(f"{path.name}-wal").exists():
        return open_for_reading(path)
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)


def read_facts(connection: sqlite3.Connection) -> Facts:
    """Read the facts. Raises sqlite3.Error when this is no database at all."""
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    facts = Facts(frozenset(name for (name,) in names))

    def rows(table: str, columns: str, rest: str = "") -> list[tuple[Any, ...]]:
        if table not in facts.tables:
            return []
        try:
            return connection.execute(f"SELECT {columns} FROM {table} {rest}").fetchall()
        except sqlite3.Error as error:
            facts.problems.append(f"table {table} is damaged: {error}")
            return []

    facts.strings = dict(rows("STRING_IDS", "id, value"))
    for name, value in rows("META_DATA", "name, value"):
        if name == "parallel_group_info":
            facts.notes[name] = value
    for start_ns, end_ns in rows("SESSION_TIME_INFO", "startTimeNs, endTimeNs"):
        facts.start_ns, facts.end_ns = start_ns, end_ns
    for (host,) in rows("HOST_INFO", "hostName"):
        facts.host = str(host)
    for (rank,) in rows("RANK_DEVICE_MAP", "rankId"):
        facts.rank = rank
    for (pid,) in rows("TASK", "globalPid", "LIMIT 1"):
        facts.pid = pid
    shifted = f"WHERE connectionId >> {schema.LEVEL_CONNECTION_SHIFT} = type"
    facts.levels = frozenset(level for (level,) in rows("CANN_API", "DISTINCT type"))
    facts.shifted_levels = frozenset(
        level for (level,) in rows("CANN_API", "DISTINCT type", shifted)
    )
    return facts
