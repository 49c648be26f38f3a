"""Existing command lines of dyno do what they did, and print what scripts look for."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from fixtures.rows import answer_row, daemon_row, status_row

from msmon.bus.messages import (
    MonitorRequest,
    Reply,
    Selection,
    StatusRequest,
    TraceRequest,
    VersionRequest,
)
from msmon.bus.rows import StatusRow
from msmon.commands.asking.connection import Connection
from msmon.compat.dyno import command as dyno


@pytest.fixture
def daemon(monkeypatch):
    """A daemon with ``rows`` of status; keeps what it is asked, accepts everything."""

    class Daemon:
        rows: list[StatusRow] = []  # noqa: RUF012
        refusal = ""
        asked: list = []  # noqa: RUF012

        def answer(self, message):
            if isinstance(message, StatusRequest):
                return Reply("ok", rows=self.rows)
            if isinstance(message, VersionRequest):
                return Reply("ok", daemon=daemon_row(version="9.9"))
            self.asked.append(message)
            wanted = message.selection.pids
            rows = [
                answer_row(pid=row.pid, rank=row.rank, ok=not self.refusal, text=self.refusal)
                for row in self.rows
                if not wanted or row.pid in wanted
            ]
            if not rows:
                return Reply("none-registered", "no process is registered", "start one")
            return Reply("failed" if self.refusal else "ok", rows=rows)

    started = Daemon()
    started.rows, started.asked = [row(11, 0), row(12, 1)], []
    monkeypatch.setattr(Connection, "request", lambda _, message: started.answer(message))
    return started


def row(pid: int, rank: int, state: str = "idle", **more) -> StatusRow:
    return status_row(pid=pid, rank=rank, state=state, **more)


@pytest.fixture
def run(capsys):
    def run_dyno(*arguments: str) -> tuple[int, str, str]:
        code = dyno.main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_dyno


def response(out: str) -> dict:
    """Read an answer as scripts do: from the first to the last brace."""
    assert "response = {" in out
    return json.loads(out[out.index("{") : out.rindex("}") + 1])


def test_monitoring_is_started_by_the_old_command_line(daemon, run):
    code, out, errors = run(
        *("--certs-dir", "NO_CERTS", "--hostname", "localhost", "--port", "1778"),
        *("npu-monitor", "--npu-monitor-start", "--report-interval-s", "30"),
        *("--mspti-activity-kind", "Marker,Kernel", "--log-file", "/data/out"),
        *("--json-rotate-log-lines", ""),
    )
    assert (code, errors) == (0, "")
    fields = {"report_interval_s": 30.0, "kinds": "Marker,Kernel", "log_file": "/data/out"}
    assert daemon.asked == [MonitorRequest("start", fields)]
    assert response(out) == {
        "activityProfilersBusy": 0,
        "activityProfilersTriggered": [11, 12],
        "commandStatus": "effective",
        "eventProfilersBusy": 0,
        "eventProfilersTriggered": [],
        "processesMatched": [11, 12],
    }
    assert out.startswith(
        "NPU_MONITOR_START=true\nNPU_MONITOR_STOP=false\nREPORT_INTERVAL_S=30\nDURATION=0\n"
        "MSPTI_ACTIVITY_KIND=Marker,Kernel\nNPU_MONITOR_LOG_FILE=/data/out\n"
        "NPU_MONITOR_EXPORT_TYPE=DB\nJSONL_ROTATE_LOG_LINES=\nJSONL_ROTATE_LOG_FILES=\n"
        "NPU_MONITOR_FILTER=\n"
    )


def test_a_second_start_changes_what_runs(daemon, run):
    daemon.rows = [row(11, 0, "monitoring"), row(12, 1)]
    command = ("npu-monitor", "--npu-monitor-start", "--filter", "Kernel:MatMul")
    assert run(*command)[0] == 0
    fields = {"filter": "Kernel:MatMul"}
    assert daemon.asked == [
        MonitorRequest("update", fields, Selection([11])),
        MonitorRequest("start", fields, Selection([12])),
    ]


def test_stop_wins_over_start(daemon, run):
    run("npu-monitor", "--npu-monitor-start", "--npu-monitor-stop", "--report-interval-s", "0")
    assert daemon.asked == [MonitorRequest("stop")]


def test_an_ineffective_command_ends_with_0_and_says_why(daemon, run):
    daemon.refusal = "a trace runs"
    code, out, errors = run("npu-monitor", "--npu-monitor-start")
    assert (code, response(out)) == (0, {"commandStatus": "ineffective"})
    assert "rank 0" in errors
    assert "a trace runs" in errors
    daemon.rows = []
    code, out, errors = run("npu-monitor", "--npu-monitor-start")
    assert (code, response(out)) == (0, {"commandStatus": "ineffective"})
    assert "no process is registered" in errors


TRACE = ("nputrace", "--start-step", "10", "--iterations", "2", "--log-file", "/data/trace")


def test_a_trace_by_the_old_command_line(daemon, run):
    code, out, _ = run(*TRACE, "--record-shapes", "--host-sys", "None", "--duration-ms", "500")
    assert code == 0
    (asked,) = daemon.asked
    assert isinstance(asked, TraceRequest)
    assert asked.fields == {
        "start_step": 10,
        "iterations": 2,
        "log_file": "/data/trace",
        "record_shapes": True,
        "host_sys": "",
    }
    assert asked.process_limit == 0
    assert "PROFILE_RECORD_SHAPES=true" in out
    assert response(out)["processesMatched"] == [11, 12]
    assert "Matched 2 processes" in out


def test_pids_job_and_ranks_choose(daemon, run):
    daemon.rows = [row(os.getpid(), 0), row(1_999_999, 1)]
    run(*TRACE, "--pids", str(os.getppid()), "--job-id", "77", "--rank-list", "0,4-5")
    assert daemon.asked[0].selection == Selection([os.getpid()], [0, 4, 5], ["77"])
    run(*TRACE, "--pids", "0", "--job-id", "0")
    assert daemon.asked[1].selection == Selection()


@pytest.mark.parametrize(
    "wrong",
    [
        ("nputrace", "--iterations", "2", "--log-file", "/x"),
        (*TRACE[:4], "0", *TRACE[5:]),
        ("npu-monitor", "--mspti-activity-kind", "Kernels"),
        ("npu-monitor", "--report-interval-s", "-1"),
        ("npu-monitor", "--no-such-option"),
    ],
)
def test_wrong_options_end_with_2(daemon, run, wrong):
    code, out, errors = run(*wrong)
    assert (code, out, daemon.asked) == (2, "", [])
    assert errors


def test_status_is_one_for_all(daemon, run):
    daemon.rows = [
        row(11, 0, "monitoring", step=8),
        row(12, 1, "tracing", step=9, trace={"state": "ready", "start_step": 20, "stop_step": 22}),
        row(13, 2, "lost", step=99),
    ]
    assert response(run("status")[1]) == {
        "current_step": 9,
        "npumonitor": "Running",
        "nputrace": "Ready",
        "start_step": 20,
        "stop_step": 22,
    }
    daemon.rows = []
    assert response(run("status")[1])["npumonitor"] == "Uninitialized"
    assert response(run("version")[1]) == {"version": "9.9"}


def test_a_certificate_directory_leads_to_keys(daemon, run):
    code, _, errors = run("--certs-dir", "/etc/dyno/certs", "status")
    assert code == 0
    assert "/etc/dyno/certs" in errors
    assert "msmon keys" in errors


def test_without_a_daemon_it_fails(run, monkeypatch, tmp_path):
    monkeypatch.setenv("MSMON_RUNTIME_DIR", str(tmp_path))
    code, out, errors = run("status")
    assert (code, out) == (1, "")
    assert "no daemon" in errors


def test_the_package_can_be_run_and_warns_of_nothing():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "msmon.compat.dyno", "--help"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: msmon-dyno")
