"""The private cluster of ``msmon demo``: a daemon and simulated ranks as real processes.

They have a runtime directory of their own, so they meet no other daemon, and they end with the
demo.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msmon.bus.client import Client
from msmon.bus.endpoints import Endpoint, local_endpoint
from msmon.bus.messages import Message, Reply, StatusRequest
from msmon.errors import BusError, MsmonError

START_LIMIT_S = 12.0
START_LIMIT_PER_RANK_S = 1.0
STOP_LIMIT_S = 4.0
POLL_S = 0.1
DAEMON = "daemon"
METRICS_FILE = "metrics.jsonl"

_LAUNCHER_VARIABLES = ("RANK", "LOCAL_", "WORLD_", "OMPI_", "PMI", "SLURM_", "MSMON", "KINETO_")
"""Prefixes of variables that would tell a simulated rank about another job, or of our own."""


class Cluster:
    """A daemon and its ranks; use it as a context manager.

    ``private`` takes the socket, so its path must be short, and the keys. ``data`` takes windows
    and logs. ``simulation`` is the text for MSMON_SIMULATE.
    """

    def __init__(
        self, private: Path, data: Path, ranks: int, simulation: str, step_s: float
    ) -> None:
        self._sink = f"metrics-json:path={data / METRICS_FILE}"
        self._logs = data / "logs"
        self._ranks = ranks
        self._step_s = step_s
        self._environ = {
            **_without_launcher(os.environ),
            "MSMON_RUNTIME_DIR": str(private / "run"),
            "MSMON_KEYS_DIR": str(private / "keys"),
            "MSMONITOR_LOG_PATH": str(self._logs),
            "MSMON_SIMULATE": simulation,
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Cluster:
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def endpoint(self) -> Endpoint:
        """Return where the private daemon is."""
        return local_endpoint(self._environ)

    def request(self, message: Message, timeout_s: float = 10.0) -> Reply:
        """Send one request to the private daemon and return its reply."""
        with Client(self.endpoint(), timeout_s) as client:
            reply: Reply = client.request(message, timeout_s)
            return reply

    def check(self) -> None:
        """Raise MsmonError when one of the processes has ended by itself."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise MsmonError(
                    f"{name} ended by itself, exit code {process.returncode}", self._tail(name)
                )

    def stop(self) -> None:
        """End all processes, ranks first; Ctrl-C does not cut this short."""
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._end([name for name in self._processes if name != DAEMON])
            self._end([name for name in self._processes if name == DAEMON])
        finally:
            signal.signal(signal.SIGINT, previous)

    def _start_all(self) -> None:
        self._logs.mkdir(exist_ok=True)
        self._start(DAEMON, ["daemon", "--sink", self._sink], {})
        for rank in range(self._ranks):
            identity = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self._ranks}
            self._start(f"rank {rank}", ["rank", str(self._step_s)], identity)
        self._await_registration()

    def _start(self, name: str, arguments: Sequence[str], variables: Mapping[str, object]) -> None:
        environ = {**self._environ, **{key: str(value) for key, value in variables.items()}}
        with self._log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "msmon.commands.demo.child", *arguments],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends them
            )

    def _await_registration(self) -> None:
        limit_s = START_LIMIT_S + START_LIMIT_PER_RANK_S * self._ranks
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            self.check()
            try:
                if len(self.request(StatusRequest(), timeout_s=2.0).rows) >= self._ranks:
                    return
            except BusError:
                pass  # not listening yet
            time.sleep(POLL_S)
        raise MsmonError(f"the ranks did not register within {limit_s:g} s", self._tail(DAEMON))

    def _end(self, names: Sequence[str]) -> None:
        processes = [self._processes[name] for name in names]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + STOP_LIMIT_S
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _log(self, name: str) -> Path:
        return self._logs / f"{name.replace(' ', '-')}.log"

    def _tail(self, name: str) -> str:
        lines = self._log(name).read_text(errors="replace").splitlines()
        return "\n  ".join(lines[-8:])


def _without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environ.items() if not name.startswith(_LAUNCHER_VARIABLES)
    }
