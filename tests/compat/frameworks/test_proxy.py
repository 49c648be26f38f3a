"""The five methods: a forked helper carries commands, ranks act on each once, nothing raises."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from msmon.agent import lifecycle
from msmon.bus.client import Client
from msmon.bus.endpoints import local_endpoint
from msmon.bus.messages import MonitorRequest, StatusRequest
from msmon.bus.rows import TraceRow
from msmon.bus.words import MonitorAction, TraceState
from msmon.compat.frameworks.config_text import FrameworkCommand, monitor_text
from msmon.compat.frameworks.proxy import DynamicMonitorProxy
from msmon.errors import BusError
from msmon.sessions import ProcessInfo


class Agent:
    """Keeps what it is told to do."""

    def __init__(self) -> None:
        self.identity = ProcessInfo("host", 1, 1, rank=1, launch="here")
        self.is_monitoring = False
        self.submitted: list[tuple[str, dict, str]] = []
        self.traces: list[TraceRow] = []

    def submit(self, action: str, fields: dict, request_id: str) -> None:
        self.submitted.append((action, fields, request_id))

    def note_framework_trace(self, trace: TraceRow) -> None:
        self.traces.append(trace)


@pytest.fixture
def agent(monkeypatch):
    made = Agent()
    monkeypatch.setattr(lifecycle, "agent_of_rank", lambda: made)
    monkeypatch.setattr(lifecycle, "current_agent", lambda: made)
    return made


def config(action: str, request_id: str, launch: str = "here", ranks=(), **fields) -> dict:
    text = monitor_text(FrameworkCommand(MonitorAction(action), fields, request_id, launch, ranks))
    return dict(line.split("=") for line in text.splitlines())


def test_a_repeated_text_is_queued_once(agent):
    proxy = DynamicMonitorProxy()
    for _ in range(3):
        proxy.enable_dyno_npu_monitor(config("start", "r1", kinds="Kernel"))
    proxy.enable_dyno_npu_monitor(config("stop", "r2"))
    assert agent.submitted == [
        ("monitor.start", {"kinds": "Kernel"}, "r1"),
        ("monitor.stop", {}, "r2"),
    ]


def test_other_launches_and_ranks_are_not_meant(agent):
    proxy = DynamicMonitorProxy()
    proxy.enable_dyno_npu_monitor(config("start", "r1", launch="elsewhere"))
    proxy.enable_dyno_npu_monitor(config("start", "r2", ranks=(0, 2)))
    assert agent.submitted == []


MSMONITOR = {
    "NPU_MONITOR_START": "true",
    "NPU_MONITOR_STOP": "false",
    "REPORT_INTERVAL_S": "5",
    "DURATION": "0",
    "NPU_MONITOR_EXPORT_TYPE": "DB",
}


def test_msmonitors_start_of_what_runs_is_an_update(agent):
    proxy = DynamicMonitorProxy()
    proxy.enable_dyno_npu_monitor(MSMONITOR)
    agent.is_monitoring = True
    proxy.enable_dyno_npu_monitor({**MSMONITOR, "REPORT_INTERVAL_S": "6"})
    assert [action for action, _, _ in agent.submitted] == ["monitor.start", "monitor.update"]
    assert agent.submitted[1][1] == {"report_interval_s": 6.0}


def test_trace_status_is_kept_for_the_heartbeat(agent, monkeypatch):
    reported = []
    monkeypatch.setattr(lifecycle, "report_step", lambda *told: reported.append(told))
    status = {"profiler_status": "2", "current_step": "9", "start_step": "12", "stop_step": "x"}
    DynamicMonitorProxy().update_profiler_status(status)
    assert agent.traces == [TraceRow(TraceState.READY, start_step=12)]
    assert reported == [(9, "what the framework's dynamic profiler reports")]


@pytest.mark.parametrize("nonsense", [None, 5, {}, {"NPU_MONITOR_START": "true", "DURATION": "x"}])
def test_nothing_raises(nonsense, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("MSMONITOR_LOG_PATH", str(tmp_path))
    monkeypatch.delenv("MSMONITOR_USE_DAEMON", raising=False)
    proxy = DynamicMonitorProxy()
    assert proxy.poll_dyno() == ""
    proxy.enable_dyno_npu_monitor(nonsense)
    proxy.update_profiler_status(nonsense)
    proxy.finalize_dyno()
    assert capfd.readouterr() == ("", "")


def test_calling_the_proxy_gives_the_proxy():
    from IPCMonitor import PyDynamicMonitorProxy

    assert PyDynamicMonitorProxy() is PyDynamicMonitorProxy


JOB = """
import json, os
os.environ["MSMONITOR_USE_DAEMON"] = "1"
from IPCMonitor import PyDynamicMonitorProxy
proxy = PyDynamicMonitorProxy()
read, write = os.pipe()
helper = os.fork()
if helper == 0:
    os.close(read)
    assert proxy.init_dyno(3)
    while os.getppid() != 1:
        text = proxy.poll_dyno()
        pairs = [line.split("=") for line in text.splitlines()]
        if pairs:
            os.write(write, json.dumps(dict(pairs)).encode() + b"\\n")
    os._exit(0)
os.close(write)
print("helper", helper, flush=True)
for line in open(read):
    proxy.enable_dyno_npu_monitor(json.loads(line))
    proxy.enable_dyno_npu_monitor(json.loads(line))
"""


@pytest.fixture
def environ(tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {
        **kept,
        "MSMON_RUNTIME_DIR": str(tmp_path / "run"),
        "MSMON_KEYS_DIR": str(tmp_path / "keys"),
        "MSMONITOR_LOG_PATH": str(tmp_path / "log"),
        "MSMON_SIMULATE": "rate=100",
    }


class Daemon:
    """A real daemon, started when ``start`` is called."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._environ = environ
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "msmon.commands.daemon", "--heartbeat-s", "0.2"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, env=self._environ, stdout=quiet, stderr=quiet)

    def request(self, message):
        try:
            with Client(local_endpoint(self._environ)) as client:
                return client.request(message)
        except BusError:
            return None

    def wait_for_state(self, *states: str) -> list[dict]:
        """Wait until the processes that live have these states; return their rows."""
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            reply = self.request(StatusRequest())
            rows = [row for row in (reply.rows if reply else ()) if row.state != "lost"]
            if reply is not None and [row.state for row in rows] == list(states):
                return rows
            time.sleep(0.05)
        raise AssertionError(f"waited in vain for {states}")


@pytest.fixture
def daemon(environ):
    made = Daemon(environ)
    yield made
    if made.process is not None:
        made.process.terminate()
        made.process.wait(10)


def test_a_helper_carries_commands_and_leaves_with_its_rank(daemon, environ, tmp_path):
    """The daemon comes after the job; the command goes through a real fork to the rank."""
    wanted = {**environ, "RANK": "3"}
    job = subprocess.Popen([sys.executable, "-c", JOB], env=wanted, stdout=subprocess.PIPE)
    try:
        assert job.stdout is not None
        assert job.stdout.readline().startswith(b"helper")
        daemon.start()
        (row,) = daemon.wait_for_state("carrier")
        assert (row.pid, row.rank) == (job.pid, 3)
        asked = MonitorRequest("start", {"kinds": "Kernel", "log_file": str(tmp_path / "a=b")})
        reply = daemon.request(asked)
        assert (reply.outcome, reply.rows[0].ok) == ("ok", True), reply
        (row,) = daemon.wait_for_state("monitoring")
        assert row.pid == job.pid
        assert row.settings.log_file == str(tmp_path / "a=b")
    finally:
        job.kill()
        job.communicate()
    daemon.wait_for_state()
