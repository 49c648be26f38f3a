"""Simulated jobs as real processes, exported as DB, and msprof-analyze to read their files.

``export_job(ranks)`` runs a daemon and ranks, monitors them, and returns the :class:`Job`.
``msprof_analyze`` is the tool's command line: the program on the PATH or named by
MSPROF_ANALYZE, as ``scripts/test --full`` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

SLOW_RANK = 2
SECONDS = 5.0
DEADLINE_S = 40.0
KINDS = "Kernel,API,NodeAPI,AclAPI,RuntimeAPI,Communication,Marker"
GROUPS = {"tensor_parallel_group": "tp", "data_parallel_group": "dp"}
"""Communicators of the simulated job and their parallel dimension."""

_PROGRAM = shutil.which(os.environ.get("MSPROF_ANALYZE", "msprof-analyze"))
_RANK = """
import time, msmon
msmon.init()
while True:
    time.sleep(0.1)
    msmon.step()
"""


class Query(Protocol):
    """Asks a database for rows."""

    def __call__(self, sql: str) -> list[tuple[Any, ...]]: ...


def query(database: Path, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of one statement."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute(sql).fetchall()


@dataclass(frozen=True)
class Job:
    """A finished job: its databases, and what each rank's simulation says it recorded."""

    ranks: int
    directory: Path
    ledgers: list[dict[str, Any]]
    """Per rank: "emitted" (kind → records), "operators" (kind, name, count, total_ns)."""

    def recorded(self, *kinds: str) -> dict[tuple[int, str], tuple[int, int]]:
        """Return (rank, name) → (count, total ns) of all records of these kinds."""
        return {
            (rank, row["name"]): (row["count"], row["total_ns"])
            for rank, ledger in enumerate(self.ledgers)
            for row in ledger["operators"]
            if row["kind"] in kinds
        }

    def exported(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds in the databases, with the rank before each."""
        return [
            (int(path.stem.rpartition("_")[2]), *row)
            for path in sorted(self.directory.glob("*.db"))
            for row in query(path, sql)
        ]


class _Processes:
    """The daemon and the ranks of one job, in a directory of their own."""

    def __init__(self, directory: Path, ranks: int) -> None:
        self._ranks = ranks
        self.exports = directory / "db"
        self._directory = directory
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MSMON")},
            "MSMON_RUNTIME_DIR": str(directory / "run"),
            "MSMON_KEYS_DIR": str(directory / "keys"),
            "MSMONITOR_LOG_PATH": str(directory),
            "MSMON_SIMULATE": (
                f"rate=3000,slow_rank={SLOW_RANK},slow_link=8,ledger={directory}/ledger-{{rank}}"
            ),
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self) -> list[dict[str, Any]]:
        """Monitor the job for some seconds; returns the ledgers."""
        try:
            self._start("-m", "msmon.commands.daemon")
            for rank in range(self._ranks):
                self._start("-c", _RANK, rank=rank)
            self._await_ranks()
            options = ("--kind", KINDS, "--report-interval-s", "1", "--export-type", "DB")
            self._msmon("npu-monitor", "start", "--log-file", str(self.exports), *options)
            time.sleep(SECONDS)
            self._msmon("npu-monitor", "stop")
        finally:
            for process in self._started:
                process.send_signal(signal.SIGTERM)
            for process in self._started:
                process.wait(DEADLINE_S)
        paths = [self._directory / f"ledger-{rank}" for rank in range(self._ranks)]
        return [json.loads(path.read_text()) for path in paths]

    def _start(self, *arguments: str, rank: int | None = None) -> None:
        environ = dict(self._environ)
        if rank is not None:
            environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self._ranks)}
        self._started.append(
            subprocess.Popen(
                [sys.executable, *arguments],
                env=environ,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def _await_ranks(self) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            answer = self._msmon("status", "--json", check=False)
            if answer.returncode == 0 and len(json.loads(answer.stdout)["rows"]) == self._ranks:
                return
            assert time.monotonic() < deadline_s, answer.stdout + answer.stderr
            time.sleep(0.2)

    def _msmon(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        answer = subprocess.run(
            [sys.executable, "-m", "msmon.commands.main", *arguments],
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert not check or answer.returncode == 0, answer.stdout + answer.stderr
        return answer


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


@pytest.fixture(scope="session")
def export_job(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Job]:
    """Return a function that runs a job of so many ranks; each size runs once."""
    jobs: dict[int, Job] = {}

    def job(ranks: int) -> Job:
        if ranks not in jobs:
            directory = tmp_path_factory.mktemp("job")
            processes = _Processes(directory, ranks)
            ledgers = processes.run()
            for database in processes.exports.glob("*.db"):
                _add_parallel_groups(database, ranks)
            jobs[ranks] = Job(ranks, processes.exports, ledgers)
        return jobs[ranks]

    return job


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
