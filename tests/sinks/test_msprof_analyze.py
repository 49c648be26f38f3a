"""msprof-analyze as the judge of exported databases: it finds what was planted, in our totals.

Needs the program ``msprof-analyze`` (PyPI) on the PATH, or its path in MSPROF_ANALYZE. It
wants other versions of common packages than the tests, so it has an environment of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msmon.kinds import ActivityKind
from msmon.records import Batch
from msmon.sessions import SessionEnd
from msmon.sinks.sqlite import SqliteSink

PROGRAM = shutil.which(os.environ.get("MSPROF_ANALYZE", "msprof-analyze"))
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="msprof-analyze is not installed (pip install msprof-analyze)"
)

SLOW_RANK = 2
STEPS = 5
KINDS = "Kernel,API,AclAPI,RuntimeAPI,Communication,Marker"
GROUP_NAMES = {"group_name_0": "dp", "group_name_17": "tp"}


class Job:
    """The files of one job, its records, and what msprof-analyze says about them."""

    def __init__(self, directory: Path, ranks: int) -> None:
        self.directory = directory
        self.ranks = ranks
        self.batches: list[Batch] = []

    def total(self, kind: ActivityKind) -> tuple[int, int]:
        """Return the number of records of a kind and their summed duration in ns."""
        mine = [batch.records for batch in self.batches if batch.kind == kind]
        durations = [int((item["end_ns"] - item["start_ns"]).sum()) for item in mine]
        return sum(map(len, mine)), sum(durations)

    def analyse(self, mode: str) -> Callable[[str], list[tuple[Any, ...]]]:
        """Run a mode; return a function that queries its result."""
        output = self.directory / "results" / mode
        output.mkdir(parents=True)
        command = [str(PROGRAM), "cluster", "-m", mode, "-d", str(self.directory / "job")]
        done = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        result = output / "cluster_analysis_output" / "cluster_analysis.db"
        return lambda sql: query(result, sql)


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


@pytest.fixture(scope="module", params=[4, 8])
def job(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    session: Callable[..., Any],
    job_rank: Callable[..., Any],
) -> Job:
    """A job whose rank 1 was started one collective later than the others."""
    ranks: int = request.param
    made = Job(tmp_path_factory.mktemp(f"ranks{ranks}"), ranks)
    sink = SqliteSink()
    opened = [
        session(made.directory / "job", number, kinds=KINDS, session_id=f"s{number}")
        for number in range(ranks)
    ]
    for number, item in enumerate(opened):
        sink.open_session(item)
        batches = write_rank(sink, item.session_id, job_rank(number, ranks, SLOW_RANK))
        made.batches += batches
        sink.write_note(item.session_id, len(batches) + 2, "parallel_group_info", group_info(ranks))
    for item in opened:
        sink.close_session(item.session_id, 1_000_000, SessionEnd(item.start_ns + 1, "stop"))
    sink.commit()
    sink.close()
    return made


def write_rank(sink: SqliteSink, session_id: str, rank: Any) -> list[Batch]:
    batches: list[Batch] = []
    for number in range(STEPS):
        late_start = rank.rank == 1 and number == 0
        batches += rank.step(number, skipped_collectives=1 if late_start else 0)
    batches[-1].records["end_ns"][-1] += 5_000_000  # one collective is slow on every rank
    for seq, batch in enumerate(batches, 2):
        sink.write_records(session_id, seq, batch)
    return batches


def group_info(ranks: int) -> str:
    return json.dumps(
        {
            group: {"group_name": name, "group_rank": 0, "global_ranks": list(range(ranks))}
            for group, name in GROUP_NAMES.items()
        }
    )


def test_hccl_sum_has_our_totals(job: Job) -> None:
    result = job.analyse("hccl_sum")
    assert result("SELECT sum(Count), sum(SumNs) FROM HcclAllRankStats") == [
        job.total(ActivityKind.Communication)
    ]
    named = result("SELECT GroupName FROM HcclGroupNameMap")
    assert {name for (name,) in named} >= set(GROUP_NAMES)


def test_compute_op_sum_has_our_totals(job: Job) -> None:
    result = job.analyse("compute_op_sum")
    assert result("SELECT sum(Count), sum(SumNs) FROM ComputeOpAllRankStats") == [
        job.total(ActivityKind.Kernel)
    ]


def test_cann_api_sum_has_our_totals(job: Job) -> None:
    result = job.analyse("cann_api_sum")
    rows = result("SELECT name, totalCount, totalTimeNs FROM CannApiSum")
    kinds = (ActivityKind.API, ActivityKind.AclAPI, ActivityKind.RuntimeAPI)
    assert {name: (count, total) for name, count, total in rows} == {
        f"{kind.name}_launch": job.total(kind) for kind in kinds
    }


def test_mstx_sum_has_our_ranges_in_their_steps(job: Job) -> None:
    result = job.analyse("mstx_sum")
    counts = result("SELECT StepId, sum(Count) FROM MSTXAllDeviceStats GROUP BY StepId")
    assert counts == [(step, 3 * job.ranks) for step in range(STEPS)]


def test_slow_rank_names_the_planted_one(job: Job) -> None:
    votes = job.analyse("slow_rank")("SELECT rankId, slowAffectCount FROM SlowRank")
    assert max(votes, key=lambda row: row[1])[0] == SLOW_RANK
    assert sum(count for rank, count in votes if rank == SLOW_RANK) >= STEPS * 6 - 4


def test_slow_link_finds_the_planted_one(job: Job) -> None:
    result = job.analyse("slow_link")
    assert result("SELECT count(*) FROM sqlite_master WHERE name LIKE 'SlowLink%'")[0][0] > 0


def test_free_analysis_finds_idle_times(job: Job) -> None:
    ranks = job.analyse("free_analysis")("SELECT count(DISTINCT rankId) FROM FreeAnalysis")
    assert ranks == [(job.ranks,)]


def test_masking_knows_steps_and_groups(job: Job) -> None:
    result = job.analyse("computational_op_masking")
    table = "ComputationalOperatorMaskingLinearity"
    assert result(f"SELECT count(DISTINCT stepId) FROM {table}") == [(STEPS,)]
    busy = result(
        f"SELECT min(totalCommunicationOperatorTime) FROM {table} WHERE parallelType='tp'"
    )
    assert busy[0][0] > 0


def test_pp_chart_finds_forward_and_backward(job: Job) -> None:
    job.analyse("pp_chart")
    for path in (job.directory / "job").glob("*.db"):
        rows = query(path, "SELECT name, count(*) FROM StepTaskInfo GROUP BY name")
        assert sum(count for _, count in rows) == 2 * STEPS
