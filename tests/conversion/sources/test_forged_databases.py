"""Databases made to hurt whoever converts them: their schema never runs.

What reading them costs is bounded by their size.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msmon.conversion.sources.database_access import ForgedDatabase, ReadOnlyDatabase
from msmon.conversion.sources.search import find_sources

PAGE_BYTES = 32768
ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n"


@pytest.fixture
def forge(tmp_path: Path, export: Callable[..., Any]) -> Callable[..., Path]:
    """Run SQL on an exported database and return its path."""

    def run(*statements: str) -> Path:
        (path,) = export(tmp_path, "DB")
        connection = sqlite3.connect(path)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()
        return Path(path)

    return run


def test_a_view_in_the_place_of_a_table_is_not_read(
    forge: Callable[..., Path], read: Callable[..., Any]
) -> None:
    path = forge("DROP TABLE CANN_API", f"CREATE VIEW CANN_API AS {ENDLESS} AS startNs FROM r")
    found, (source,) = read(path)
    assert "API" not in found
    assert len(found["Kernel"]) == 200
    assert "CANN_API is a view" in source.problems[0]
    assert source.skipped == 1


def test_a_generated_column_is_not_computed(
    forge: Callable[..., Path], read: Callable[..., Any]
) -> None:
    path = forge(
        "ALTER TABLE HOST_INFO ADD COLUMN more TEXT AS (hex(zeroblob(400000000)))",
        "DROP TABLE STRING_IDS",
        "CREATE TABLE STRING_IDS (id INTEGER)",
        "INSERT INTO STRING_IDS VALUES (1)",
        "ALTER TABLE STRING_IDS ADD COLUMN value TEXT AS (hex(zeroblob(400000000)))",
    )
    found, (source,) = read(path)
    assert all(row[-1].startswith("#") for row in found["Kernel"])
    assert source.process.host == ""
    assert len([problem for problem in source.problems if "computes" in problem]) == 2


@pytest.mark.parametrize("rank", ["/../../x", 2**40, -7, 1.5, None])
def test_a_rank_that_can_be_none_never_reaches_a_path(
    forge: Callable[..., Path], rank: object
) -> None:
    path = forge(f"UPDATE RANK_DEVICE_MAP SET rankId = {rank!r}".replace("None", "NULL"))
    (source,) = find_sources([path.rename(path.with_name("taken.db"))])
    assert source.process.rank == -1
    assert source.skipped == 1


def test_a_text_where_a_number_belongs_is_never_a_format(
    forge: Callable[..., Path], read: Callable[..., Any]
) -> None:
    path = forge("UPDATE CANN_API SET connectionId = '%1999999999d', startNs = '%999999999d'")
    found, (source,) = read(path)
    assert not {"API", "AclAPI", "RuntimeAPI"} & set(found)
    assert source.skipped == 600


def test_a_join_that_multiplies_its_rows_is_ended(
    forge: Callable[..., Path], read: Callable[..., Any]
) -> None:
    tables = ("TASK", "COMPUTE_TASK_INFO", "MEMCPY_INFO", "MSMON_MEMSET")
    path = forge(*(f"UPDATE {table} SET globalTaskId = 1" for table in tables))
    _, (source,) = read(path)
    assert "more rows than its size can hold" in " ".join(source.problems)


def test_a_text_whose_pages_point_at_themselves_is_no_gigabyte(
    forge: Callable[..., Path], read: Callable[..., Any]
) -> None:
    path = forge(f"INSERT INTO STRING_IDS VALUES (99999, '{'Q' * 200_000}')")
    data = bytearray(path.read_bytes())
    for page in range(len(data) // PAGE_BYTES):
        start = page * PAGE_BYTES
        if data[start + 4 : start + 400] == b"Q" * 396:
            data[start : start + 4] = struct.pack(">I", page + 1)
    path.write_bytes(data)
    found, _ = read(path)
    assert len(found["Kernel"]) == 200


def test_an_endless_query_ends(forge: Callable[..., Path]) -> None:
    path = forge()
    with ReadOnlyDatabase(path) as database:
        with pytest.raises(ForgedDatabase, match="longer than its size explains"):
            list(database.rows(f"{ENDLESS} FROM r WHERE n < 0"))
        with pytest.raises(ForgedDatabase, match="more rows than its size"):
            list(database.rows(f"{ENDLESS} FROM r"))


def test_a_pipe_at_the_name_of_the_log_is_refused(forge: Callable[..., Path]) -> None:
    path = forge()
    os.mkfifo(f"{path}-wal")
    (source,) = find_sources([path])
    assert "is no regular file" in source.problems[0]
