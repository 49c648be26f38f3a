"""A database file that is copied alone holds nearly all, and who finds it says what is missing."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msmon.conversion.convert import convert
from msmon.conversion.sources.search import find_sources
from msmon.conversion.targets.choosing import choose_target
from msmon.records.batch import Batch
from msmon.sessions import SessionEnd
from msmon.sinks.base import Progress
from msmon.sinks.sqlite import session_file
from msmon.sinks.sqlite.sink import SqliteSink

END = SessionEnd(1_790_000_100_000_000_000, "stop")


def kernels_in(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM TASK").fetchone()
    return int(count)


@pytest.fixture
def copied(tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]) -> Any:
    """Return a function that copies the file of a running session, alone."""

    def copy(batches: int) -> Path:
        sink = SqliteSink()
        (path,) = sink.open_session(session(tmp_path / "written")).files
        for seq in range(2, batches + 2):
            sink.write_records("session-0", seq, kernels(100, seed=seq))
            sink.commit()
        (tmp_path / "copy").mkdir()
        found = Path(shutil.copy(path, tmp_path / "copy"))
        sink.close()
        return found

    return copy


def test_a_copy_is_behind_by_no_more_than_the_interval_of_checkpoints(
    copied: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_file, "CHECKPOINT_S", 0.0)
    assert kernels_in(copied(20)) == 2000


def test_a_copy_has_tables_from_its_first_moment_and_convert_says_what_it_lacks(
    copied: Callable[[int], Path], tmp_path: Path
) -> None:
    path = copied(3)
    (source,) = find_sources([path])
    report = convert([source], choose_target("jsonl", tmp_path / "out", [source]))
    assert "TASK" not in report.records
    (problem,) = report.problems
    assert f"its write-ahead log {path.name}-wal is not beside the file" in problem


def test_a_whole_session_and_one_whose_daemon_stopped_can_be_copied_alone(
    tmp_path: Path, kernels: Callable[..., Batch], session: Callable[..., Any]
) -> None:
    for ended in (True, False):
        sink = SqliteSink()
        opened = session(tmp_path / str(ended), session_id="s")
        (path,) = sink.open_session(opened).files
        sink.write_records("s", 2, kernels(100))
        if ended:
            sink.close_session("s", 3, END)
        sink.commit()
        if not ended:
            sink.write_records("s", 3, kernels(50))
        sink.close()
        assert os.listdir(tmp_path / str(ended)) == [Path(path).name]
        assert kernels_in(Path(path)) == 100
        (source,) = find_sources([Path(path)])
        assert sum(map(len, source.batches(lambda size: None))) == 100
        assert source.problems == []


def test_a_sink_that_starts_beside_such_a_copy_names_it(
    copied: Callable[[int], Path], session: Callable[..., Any], tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    path = copied(2)
    SqliteSink(path=str(path.parent)).close()
    assert path.name in caplog.text
    assert "write-ahead log" in caplog.text
    caplog.clear()
    sink = SqliteSink()
    for name in ("a", "b"):
        sink.open_session(session(path.parent, session_id=name), Progress())
    sink.close()
    assert caplog.text.count(path.name) == 1
