"""Databases of ranks that began one collective apart: msprof-analyze finds the slow rank.

Whole jobs are judged in tests/judges; here the late start is exact.

Needs the program ``msprof-analyze`` (PyPI) on the PATH, or its path in MSPROF_ANALYZE. It
wants other versions of common packages than the tests, so it has an environment of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msmon.sessions import SessionEnd
from msmon.sinks.sqlite.sink import SqliteSink

PROGRAM = shutil.which(os.environ.get("MSPROF_ANALYZE", "msprof-analyze"))
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="msprof-analyze is not installed (pip install msprof-analyze)"
)

RANKS = 4
SLOW_RANK = 2
STEPS = 5
KINDS = "Kernel,API,AclAPI,RuntimeAPI,Communication,Marker"
COLLECTIVES_PER_STEP = 6


@pytest.fixture
def job(
    tmp_path: Path,
    session: Callable[..., Any],
    job_rank: Callable[..., Any],
) -> Path:
    """The directory of a job whose rank 1 was started one collective later than the others."""
    directory = tmp_path / "job"
    sink = SqliteSink()
    opened = [
        session(directory, number, kinds=KINDS, session_id=f"s{number}") for number in range(RANKS)
    ]
    for number, item in enumerate(opened):
        sink.open_session(item)
        write_rank(sink, item.session_id, job_rank(number, RANKS, SLOW_RANK))
    for item in opened:
        sink.close_session(item.session_id, 1_000_000, SessionEnd(item.start_ns + 1, "stop"))
    sink.commit()
    sink.close()
    return directory


def write_rank(sink: SqliteSink, session_id: str, rank: Any) -> None:
    seq = 1
    for number in range(STEPS):
        late_start = rank.rank == 1 and number == 0
        for batch in rank.step(number, skipped_collectives=1 if late_start else 0):
            seq += 1
            sink.write_records(session_id, seq, batch)


def test_a_late_rank_does_not_hide_the_slow_one(job: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(PROGRAM), "cluster", "-m", "slow_rank", "-d", str(job), "-o", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback" not in done.stderr
    result = tmp_path / "cluster_analysis_output" / "cluster_analysis.db"
    with contextlib.closing(sqlite3.connect(result)) as connection:
        votes = dict(connection.execute("SELECT rankId, slowAffectCount FROM SlowRank"))
    assert max(votes, key=votes.__getitem__) == SLOW_RANK
    # the steps in which all ranks have all collectives
    assert votes[SLOW_RANK] >= (STEPS - 1) * COLLECTIVES_PER_STEP
