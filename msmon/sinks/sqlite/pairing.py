"""Collectives that not all ranks have in common are set apart when a job's session ends.

msprof-analyze leaves out a whole group when one rank has one collective more than the others.
That happens at both ends of a session, because ranks do not start and stop at the same moment.
Only the ranks of one launch are compared, each by its newest file, which is the one that
msprof-analyze reads: another job, or an earlier session of a rank, says nothing about this one.
So the number of collectives is compared step by step. Where it differs between the ranks of a
group, that step's collectives are moved to a group of their own per rank; nothing is removed.

For example rank 0 starts a little earlier and has 3 collectives of group "dp" in step 7, rank 1
has 2. Those 5 move to "dp (unpaired on rank 0)" and "dp (unpaired on rank 1)"; the steps from
8 on, where both have 4, stay in "dp".
"""

from __future__ import annotations

import sqlite3
from collections import Counter as Tally
from collections.abc import Sequence
from pathlib import Path

from msmon.sinks.sqlite.collectives import NUMBERS_PER_STEP
from msmon.sinks.sqlite.file import close_for_good, identity_at, open_for_writing

_COLLECTIVES = """
    SELECT c.rowid, g.value, o.value FROM COMMUNICATION_OP c
    JOIN STRING_IDS g ON g.id = c.groupName JOIN STRING_IDS o ON o.id = c.opName
"""

Step = tuple[str, int]
"""Name of a group and number of a step; step 0 holds what came before the first step marker."""


def set_apart_unpaired(paths: Sequence[Path]) -> int:
    """Move collectives that can't be paired in the files of one launch; return how many.

    ``paths``: one file per rank.

    Does nothing without step markers or with a single file. Raises SinkError, OSError or
    sqlite3.Error.
    """
    if len(paths) < 2:
        return 0
    files = [open_for_writing(path, identity_at(path)) for path in paths]
    try:
        found = [_rows_by_step(file) for file in files if _has_steps(file)]
        if len(found) < len(files):
            return 0
        unpaired = unpaired_steps(
            [{step: len(rows) for step, rows in item.items()} for item in found]
        )
        return sum(_move(file, item, unpaired) for file, item in zip(files, found))
    finally:
        for file in files:
            close_for_good(file)


def _has_steps(file: sqlite3.Connection) -> bool:
    names = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
    return {"STEP_TIME", "COMMUNICATION_OP"} <= names


def _rows_by_step(file: sqlite3.Connection) -> dict[Step, list[int]]:
    """Return group and step → row ids of its collectives."""
    rows: dict[Step, list[int]] = {}
    for row_id, group, name in file.execute(_COLLECTIVES):
        number = int(name.rsplit("_", 2)[1])
        rows.setdefault((group, number // NUMBERS_PER_STEP), []).append(row_id)
    return rows


def unpaired_steps(counts: Sequence[dict[Step, int]]) -> set[Step]:
    """Return the steps of groups in which the ranks differ, and always step 0, which is cut off.

    ``counts``: for each rank, the number of collectives of each step.
    """
    ranks_of_group = Tally(group for item in counts for group in {group for group, _ in item})
    unpaired = set()
    for step in {step for item in counts for step in item}:
        seen = [item[step] for item in counts if step in item]
        group, number = step
        if number == 0 or len(seen) < ranks_of_group[group] or len(set(seen)) > 1:
            unpaired.add(step)
    return unpaired


def _move(file: sqlite3.Connection, rows: dict[Step, list[int]], unpaired: set[Step]) -> int:
    moved = sorted(step for step in rows if step in unpaired)
    if not moved:
        return 0
    file.execute("BEGIN IMMEDIATE")
    (rank,) = file.execute("SELECT rankId FROM RANK_DEVICE_MAP").fetchone()
    (next_id,) = file.execute("SELECT max(id) + 1 FROM STRING_IDS").fetchone()
    for place, group in enumerate(sorted({group for group, _ in moved})):
        text = f"{group} (unpaired on rank {rank})"
        file.execute("INSERT INTO STRING_IDS VALUES (?,?)", (next_id + place, text))
        row_ids = [row_id for step in moved if step[0] == group for row_id in rows[step]]
        file.executemany(
            "UPDATE COMMUNICATION_OP SET groupName = ? WHERE rowid = ?",
            [(next_id + place, row_id) for row_id in row_ids],
        )
    file.execute("COMMIT")
    return sum(len(rows[step]) for step in moved)
