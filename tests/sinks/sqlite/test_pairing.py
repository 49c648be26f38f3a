"""Collectives have the same name on every rank, and what can't be paired is set apart."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msmon.sessions import SessionEnd
from msmon.sinks.sqlite.collectives import step_number
from msmon.sinks.sqlite.sink import SqliteSink

END = SessionEnd(9, "stop")
STEPS = range(3, 6)
PER_STEP = 6


def names_by_group(path: str) -> Counter[tuple[str, str]]:
    connection = sqlite3.connect(path)
    rows = connection.execute(
        "SELECT g.value, o.value FROM COMMUNICATION_OP c"
        " JOIN STRING_IDS g ON g.id = c.groupName JOIN STRING_IDS o ON o.id = c.opName"
    ).fetchall()
    connection.close()
    return Counter(rows)


def test_ranks_that_start_apart_still_pair(
    tmp_path: Path, job_rank: Callable[..., Any], session: Callable[..., Any]
) -> None:
    sink = SqliteSink()
    opened = [session(tmp_path, number) for number in range(3)]
    paths = [sink.open_session(item).files[0] for item in opened]
    for number, item in enumerate(opened):
        rank = job_rank(number, 3, 2)
        for step in STEPS:
            late_start = number == 1 and step == STEPS[0]
            batches = rank.step(step, skipped_collectives=1 if late_start else 0)
            for seq, batch in enumerate(batches, 10 * step):
                sink.write_records(item.session_id, seq, batch)
    for item in opened:
        sink.close_session(item.session_id, 100, END)
        sink.commit()
    sink.close()
    found = [names_by_group(path) for path in paths]
    paired = [{key for key in item if "unpaired" not in key[0]} for item in found]
    assert paired[0] == paired[1] == paired[2]
    assert [sum(item.values()) for item in found] == [18, 17, 18]
    assert len(paired[0]) == PER_STEP * len(STEPS) - PER_STEP // 2
    apart = {group for group, _ in found[1] if "unpaired" in group}
    assert apart == {"group_name_0 (unpaired on rank 1)"}


def test_without_step_markers_numbers_count_as_before(
    tmp_path: Path, job_rank: Callable[..., Any], session: Callable[..., Any]
) -> None:
    sink = SqliteSink()
    (path,) = sink.open_session(session(tmp_path)).files
    sink.write_records("session-0", 2, job_rank(0, 2, 1).step(3)[-1])
    sink.close_session("session-0", 3, END)
    sink.commit()
    names = sorted(name for group, name in names_by_group(path) if group == "group_name_0")
    assert names == [f"hcom_allGather__612_{number}_1" for number in range(3)]


def test_names_of_steps() -> None:
    known = {"step 12": 12, "ProfilerStep#7": 7, "train_step_3": 3, "STEP:4": 4}
    assert {name: step_number(name) for name in known} == known
    for name in ("footstep", "step", "step 3 forward", "stepping 4x"):
        assert step_number(name) == -1
