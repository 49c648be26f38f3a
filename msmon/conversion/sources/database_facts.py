"""What a database file says about its session, besides the records."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from msmon.conversion.sources import checked_values as checked
from msmon.conversion.sources.checked_values import VALUE_ERRORS
from msmon.conversion.sources.database_access import MAX_TEXT_BYTES, ReadOnlyDatabase
from msmon.records.kinds import ActivityKind
from msmon.sinks.sqlite import schema
from msmon.sinks.sqlite.schema import END_KEY

API_KINDS_OF_LEVELS = {
    10000: ActivityKind.API,
    20000: ActivityKind.AclAPI,
    5000: ActivityKind.RuntimeAPI,
}
"""``CANN_API.type`` → kind. Calls of level "node" may have come from kind NodeAPI as well."""

MAX_HOST_CHARACTERS = 255


@dataclass
class Facts:
    """Facts of one file; what is missing or damaged keeps its default."""

    tables: frozenset[str]
    """Names of the tables that are there and can be read."""
    notes: dict[str, str] = field(default_factory=dict)
    start_ns: int = 0
    end_ns: int = 0
    host: str = ""
    end: str = ""
    """Why the session ended; "unknown": it has not. Empty in files of msMonitor."""
    rank: int | None = None
    pid: int | None = None
    levels: frozenset[int] = frozenset()
    """Values of ``CANN_API.type``."""
    shifted_levels: frozenset[int] = frozenset()
    """Those whose connection ids hold the level above the correlation id."""
    problems: list[str] = field(default_factory=list)
    skipped: int = 0
    """Rows with values that they can't have."""

    @property
    def api_kinds(self) -> frozenset[ActivityKind]:
        """Kinds of the calls in CANN_API."""
        return frozenset(API_KINDS_OF_LEVELS[level] for level in self.levels)


def read_facts(database: ReadOnlyDatabase) -> Facts:
    """Read the facts."""
    reader = _Reader(database)
    facts = reader.facts
    for table in sorted(database.refused & _NEEDED):
        facts.skipped += 1
        facts.problems.append(f"{table} is a view or computes its values, so it is not read")
    group_info = f"WHERE name = '{_GROUP_INFO}' LIMIT 1"
    reader.read("META_DATA", _AS_TEXT, reader.group_info, MAX_TEXT_BYTES, group_info)
    ended = f"WHERE name = '{END_KEY}' LIMIT 1"
    reader.read("META_DATA", _AS_TEXT, reader.end, rest=ended)
    reader.read("SESSION_TIME_INFO", "startTimeNs, endTimeNs", reader.times, rest="LIMIT 1")
    reader.read("HOST_INFO", "hostName", reader.host, rest="LIMIT 1")
    reader.read("RANK_DEVICE_MAP", "rankId", reader.rank, rest="LIMIT 1")
    reader.read("TASK", "globalPid", reader.pid, rest="LIMIT 1")
    levels: set[int] = set()
    shifted: set[int] = set()
    known = f"WHERE type IN ({', '.join(map(str, API_KINDS_OF_LEVELS))})"
    is_shifted = f"AND connectionId >> {schema.LEVEL_CONNECTION_SHIFT} = type"
    reader.read("CANN_API", "DISTINCT type", lambda row: levels.add(row[0]), rest=known)
    rest = f"{known} {is_shifted}"
    reader.read("CANN_API", "DISTINCT type", lambda row: shifted.add(row[0]), rest=rest)
    facts.levels = frozenset(levels & API_KINDS_OF_LEVELS.keys())
    facts.shifted_levels = frozenset(shifted & API_KINDS_OF_LEVELS.keys())
    return facts


def read_strings(database: ReadOnlyDatabase, problems: list[str]) -> tuple[dict[int, str], int]:
    """Return id → text of STRING_IDS, and how many rows have values that they can't have.

    Names of collectives are left out: there is one for each, and no source needs them, as targets
    number collectives themselves. A damaged table adds a sentence to ``problems``.
    """
    reader = _Reader(database)
    rest = _WITHOUT_COLLECTIVES if "COMMUNICATION_OP" in database.tables else ""
    reader.read("STRING_IDS", "id, " + _AS_TEXT, reader.string, MAX_TEXT_BYTES, rest)
    problems += reader.facts.problems
    return reader.strings, reader.facts.skipped


_WITHOUT_COLLECTIVES = (
    "WHERE id NOT IN (SELECT opName FROM COMMUNICATION_OP WHERE opName IS NOT NULL)"
)

_NEEDED = {item.name for item in vars(schema).values() if isinstance(item, schema.Table)}
"""Names of all tables of an exported file."""

_GROUP_INFO = "parallel_group_info"
_AS_TEXT = "CASE typeof(value) WHEN 'text' THEN value END"
"""The value if it is a text; anything else is not even loaded."""


class _Reader:
    """Reads rows into ``facts``. A row with an impossible value is counted and left out."""

    def __init__(self, database: ReadOnlyDatabase) -> None:
        self._database = database
        self.facts = Facts(database.tables)
        self.strings: dict[int, str] = {}

    def read(
        self,
        table: str,
        columns: str,
        take: Callable[[Any], None],
        longest_row: int = 64 << 10,
        rest: str = "",
    ) -> None:
        """Hand the rows of a table to ``take``; a damaged table ends where the damage begins."""
        if table not in self.facts.tables:
            return
        try:
            for row in self._rows(f"SELECT {columns} FROM {table} {rest}", longest_row):
                try:
                    take(row)
                except VALUE_ERRORS:
                    self.facts.skipped += 1
        except sqlite3.Error as error:
            self.facts.problems.append(f"table {table} is damaged: {error}")

    def _rows(self, sql: str, longest_row: int) -> Iterator[Any]:
        for rows in self._database.rows(sql, longest_row):
            yield from rows

    def string(self, row: Any) -> None:
        number = checked.whole(row[0], -(2**63), 2**63 - 1)
        self.strings[number] = checked.text(row[1])

    def group_info(self, row: Any) -> None:
        self.facts.notes[_GROUP_INFO] = checked.text(row[0], MAX_TEXT_BYTES)

    def end(self, row: Any) -> None:
        self.facts.end = checked.text(row[0], checked.MAX_GAP_TEXT)

    def times(self, row: Any) -> None:
        start_ns, end_ns = (checked.whole(value, 0, checked.MAX_TIME_NS) for value in row)
        self.facts.start_ns, self.facts.end_ns = start_ns, end_ns

    def host(self, row: Any) -> None:
        self.facts.host = checked.text(row[0], MAX_HOST_CHARACTERS)

    def rank(self, row: Any) -> None:
        self.facts.rank = checked.rank(row[0])

    def pid(self, row: Any) -> None:
        self.facts.pid = checked.whole(row[0], 0, checked.MAX_PID)
