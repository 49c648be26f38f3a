"""Collectives have the same name on every rank, and what can't be paired is set apart."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from msmon.sessions import SessionEnd
from msmon.sinks.base import Progress
from msmon.sinks.sqlite import matching
from msmon.sinks.sqlite.collectives import step_number
from msmon.sinks.sqlite.pairing import set_apart_unpaired
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


def write_steps(sink: SqliteSink, item: Any, rank: Any, steps: Iterable[int]) -> str:
    """Write and close a session; return its file."""
    (path,) = sink.open_session(item).files
    for step in steps:
        for seq, batch in enumerate(rank.step(step), 10 * step):
            sink.write_records(item.session_id, seq, batch)
    return path


def unpaired(*paths: str) -> int:
    return sum(
        count
        for path in paths
        for (group, _), count in names_by_group(path).items()
        if "unpaired" in group
    )


def test_an_earlier_short_session_of_a_rank_moves_nothing(
    tmp_path: Path, job_rank: Callable[..., Any], session: Callable[..., Any]
) -> None:
    sink = SqliteSink()
    long_session = session(tmp_path, 1)
    second = write_steps(sink, long_session, job_rank(1, 2, 0), ())
    write_steps(sink, session(tmp_path, 0, "short"), job_rank(0, 2, 0), (1,))
    sink.close_session("short", 100, END)
    sink.commit()
    first = write_steps(sink, session(tmp_path, 0, "again"), job_rank(0, 2, 0), range(3, 7))
    rank = job_rank(1, 2, 0)
    for step in range(3, 7):
        for seq, batch in enumerate(rank.step(step), 10 * step):
            sink.write_records(long_session.session_id, seq, batch)
    for session_id in ("again", long_session.session_id):
        sink.close_session(session_id, 100, END)
    sink.commit()
    sink.close()
    assert sum(names_by_group(first).values()) == sum(names_by_group(second).values()) == 24
    assert unpaired(first, second) == 0


@pytest.mark.parametrize(
    "ids",
    [
        ({"job_id": ""}, {"job_id": ""}),
        ({"launch": "a"}, {"launch": "b"}),
        ({"job_id": "1"}, {"job_id": "2"}),
    ],
)
def test_jobs_that_are_not_known_to_be_one_are_not_compared(
    tmp_path: Path, job_rank: Callable[..., Any], session: Callable[..., Any],
    ids: tuple[dict[str, str], dict[str, str]],
) -> None:  # fmt: skip
    sink = SqliteSink()
    paths = []
    for job, fields in enumerate(ids):
        for rank in range(2):
            item = session(tmp_path, rank, f"{job} {rank}", **fields)
            paths.append(write_steps(sink, item, job_rank(rank, 2, 0), range(3, 5 + job)))
    for job in range(2):
        for rank in range(2):
            sink.close_session(f"{job} {rank}", 100, END)
    sink.commit()
    sink.close()
    assert unpaired(*paths) == 0


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


def test_matching_a_large_launch_holds_up_no_other_session(
    tmp_path: Path, job_rank: Callable[..., Any], session: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    may_match = threading.Event()

    def slow(paths: Sequence[Path]) -> int:
        may_match.wait(20)
        return set_apart_unpaired(paths)

    monkeypatch.setattr(matching, "set_apart_unpaired", slow)
    sink = SqliteSink()
    kept = Progress()
    opened = [session(tmp_path, number) for number in range(2)]
    paths = [sink.open_session(item, kept if not number else None).files[0]
             for number, item in enumerate(opened)]  # fmt: skip
    other = session(tmp_path, 9, job_id="another")
    (other_path,) = sink.open_session(other).files
    for number, item in enumerate((*opened, other)):
        for step in STEPS:
            batches = job_rank(number, 2, 2).step(step, skipped_collectives=int(number == 1))
            for seq, batch in enumerate(batches, 10 * step):
                sink.write_records(item.session_id, seq, batch)
    for item in opened:
        sink.close_session(item.session_id, 100, END)
    begin_s = time.monotonic()
    sink.commit()
    assert time.monotonic() - begin_s < 10
    assert sum(names_by_group(other_path).values()) == PER_STEP * len(STEPS)
    assert unpaired(*paths) == 0
    threading.Timer(0.3, may_match.set).start()
    sink.open_session(opened[0], kept)  # it comes back, and waits for its file
    assert unpaired(*paths) > 0
    sink.close()


def test_what_is_being_matched_is_finished_before_the_sink_closes(
    tmp_path: Path, job_rank: Callable[..., Any], session: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(matching, "PATIENCE_S", 0.0)
    sink = SqliteSink()
    opened = [session(tmp_path, number) for number in range(2)]
    paths = [write_steps(sink, item, job_rank(number, 2, 2), range(3 + number, 6))
             for number, item in enumerate(opened)]  # fmt: skip
    for item in opened:
        sink.close_session(item.session_id, 100, END)
    sink.commit()
    sink.close()
    assert unpaired(*paths) == PER_STEP


def test_a_user_who_may_start_no_further_thread_has_his_collectives_matched_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: Any) -> None:
        raise RuntimeError("can't start new thread")

    matched: list[Sequence[Path]] = []
    monkeypatch.setattr(matching.ThreadPoolExecutor, "submit", refused)
    monkeypatch.setattr(matching, "set_apart_unpaired", matched.append)
    begun = matching.Matching()
    begun.begin([tmp_path / "a.db"])
    begun.wait_a_moment()
    begun.close()
    assert matched == [[tmp_path / "a.db"]]
