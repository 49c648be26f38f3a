"""Fixtures for jobs under real frameworks:

``daemon``             a running msmon-daemon: ``request``, ``rows``, ``command``
``wait_for``           polls until a condition holds
``environ``            the environment of jobs that find this daemon, with a simulated MSPTI
``torch_npu_sources``  directory of an unpacked torch_npu wheel; a test runs for each version
                       that ``scripts/fetch-framework-wheels`` has fetched
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.waiting import poll_until

from msmon.bus.client import Client
from msmon.bus.endpoints import local_endpoint
from msmon.bus.messages import Message, Reply, StatusRequest
from msmon.bus.rows import StatusRow
from msmon.errors import BusError

WHEELS_VARIABLE = "MSMON_FRAMEWORK_WHEELS"
TORCH_NPU_VERSIONS = ("2.9.0", "2.13.0")

RANK_PREFIXES = ("RANK", "LOCAL_", "WORLD_", "MASTER_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC")


class RunningDaemon:
    """A daemon process, and requests to it."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._environ = environ
        self.process = subprocess.Popen(
            [sys.executable, "-m", "msmon.commands.daemon", "--heartbeat-s", "0.5"],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        poll_until(lambda: self.rows() is not None, "the daemon")

    def request(self, message: Message) -> Reply:
        with Client(local_endpoint(self._environ)) as client:
            return client.request(message, 20.0)

    def rows(self) -> list[StatusRow] | None:
        """Return the rows of living processes; None while the daemon doesn't answer."""
        try:
            rows = self.request(StatusRequest()).status_rows
        except BusError:
            return None
        return [row for row in rows if row.state not in ("lost", "ended")]

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command ``msmon``."""
        return subprocess.run(
            [sys.executable, "-m", "msmon.commands.main", *arguments],
            env=self._environ,
            capture_output=True,
            text=True,
        )


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((*RANK_PREFIXES, "MSMON", "KINETO"))
    }
    (tmp_path / "run").mkdir(mode=0o700)
    return {
        **kept,
        "MSMON_RUNTIME_DIR": str(tmp_path / "run"),
        "MSMON_KEYS_DIR": str(tmp_path / "keys"),
        "MSMONITOR_LOG_PATH": str(tmp_path / "log"),
        "MSMON_SIMULATE": "rate=2000",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def daemon(environ: dict[str, str]) -> Iterator[RunningDaemon]:
    started = RunningDaemon(environ)
    yield started
    started.process.terminate()
    started.process.wait(20)


@pytest.fixture(params=TORCH_NPU_VERSIONS)
def torch_npu_sources(request: pytest.FixtureRequest) -> Path:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed; scripts/test --full has it")
    root = os.environ.get(WHEELS_VARIABLE)
    if not root:
        pytest.skip(f"{WHEELS_VARIABLE} names no directory; scripts/test --full fills one")
    directory = Path(root) / f"torch_npu-{request.param}"
    if not (directory / "torch_npu").is_dir():
        pytest.skip(f"torch_npu {request.param} is not unpacked in {root}")
    return directory
