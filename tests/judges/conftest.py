"""Simulated jobs as real processes, exported as DB, and msprof-analyze to read their files.

``export_job(ranks)`` runs a daemon and ranks, monitors them, and returns the
:class:`ExportedJob`.
``msprof_analyze`` is the tool's command line: the program on the PATH or named by
MSPROF_ANALYZE, as ``scripts/test --full`` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from job import Job, Operators

SLOW_RANK = 2
SECONDS = 5.0
KINDS = "Kernel,API,NodeAPI,AclAPI,RuntimeAPI,Communication,Marker"
GROUPS = {"tensor_parallel_group": "tp", "data_parallel_group": "dp"}
"""Communicators of the simulated job and their parallel dimension."""

_PROGRAM = shutil.which(os.environ.get("MSPROF_ANALYZE", "msprof-analyze"))


class Query(Protocol):
    """Asks a database for rows."""

    def __call__(self, sql: str) -> list[tuple[Any, ...]]: ...


def query(database: Path, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of one statement."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute(sql).fetchall()


@dataclass(frozen=True)
class ExportedJob:
    """A finished job: its databases, and what each rank's simulation says it recorded."""

    ranks: int
    directory: Path
    operators: Sequence[Operators]

    def recorded(self, *kinds: str) -> dict[tuple[int, str], tuple[int, int]]:
        """Return (rank, name) → (count, total ns) of all named records of these kinds."""
        return {
            (rank, name): totals
            for rank, operators in enumerate(self.operators)
            for (kind, name), totals in operators.items()
            if kind in kinds and name
        }

    def exported(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds in the databases, with the rank before each."""
        return [
            (int(path.stem.rpartition("_")[2]), *row)
            for path in sorted(self.directory.glob("*.db"))
            for row in query(path, sql)
        ]


def _add_parallel_groups(database: Path, ranks: int) -> None:
    """Say what a framework would: simulated ranks have none to read the groups from."""
    groups = {
        name: {"group_name": dimension, "group_rank": 0, "global_ranks": list(range(ranks))}
        for name, dimension in GROUPS.items()
    }
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "INSERT INTO META_DATA VALUES ('parallel_group_info', ?)", (json.dumps(groups),)
        )


def _export(directory: Path, ranks: int) -> ExportedJob:
    """Monitor a job for some seconds and export it as DB."""
    exports = directory / "db"
    simulation = f"rate=3000,slow_rank={SLOW_RANK},slow_link=8"
    options = ("--kind", KINDS, "--report-interval-s", "1", "--export-type", "DB")
    with Job(directory, ranks, simulation) as job:
        job.start_daemon()
        job.start_ranks()
        started = job.msmon("npu-monitor", "start", "--log-file", str(exports), *options)
        assert started.returncode == 0, started.stdout + started.stderr
        time.sleep(SECONDS)
        stopped = job.msmon("npu-monitor", "stop")
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
        job.end_ranks()
        job.end_daemon()
    for database in exports.glob("*.db"):
        _add_parallel_groups(database, ranks)
    return ExportedJob(ranks, exports, [rank.recorded_so_far() for rank in job.ranks])


@pytest.fixture(scope="session")
def export_job(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], ExportedJob]:
    """Return a function that runs a job of so many ranks."""
    return lambda ranks: _export(tmp_path_factory.mktemp("job"), ranks)


@pytest.fixture(scope="session")
def msprof_analyze(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Query]:
    """Return a function that runs a mode of ``msprof-analyze cluster`` on a directory.

    The tool ends with 0 whatever happens, so errors in what it prints are failures.
    """
    if _PROGRAM is None:
        pytest.skip("msprof-analyze is not installed (scripts/test --full does it)")

    def analyze(mode: str, source: Path) -> Query:
        output = tmp_path_factory.mktemp(mode)
        done = subprocess.run(
            [_PROGRAM, "cluster", "-m", mode, "-d", str(source), "-o", str(output)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        printed = done.stdout + done.stderr
        assert "[ERROR]" not in printed, printed
        assert "Traceback" not in printed, printed
        return lambda sql: query(output / "cluster_analysis_output" / "cluster_analysis.db", sql)

    return analyze
