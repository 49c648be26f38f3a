"""Monitoring makes way for a trace: job, daemon and database together, with a profiler that notes
who holds MSPTI while it runs."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time

import pytest

from msmon.bus.client import Client
from msmon.bus.endpoints import local_endpoint
from msmon.bus.messages import MonitorRequest, Reply, StatusRequest, TraceRequest
from msmon.bus.rows import StatusRow
from msmon.errors import BusError

JOB = """
import os, sys, threading, types
import msmon
from msmon.recording.holder import subscription_holder
from msmon.agent.tracing import backend
from msmon.errors import CommandRefused

class Profiler:
    name, left_out = "noting profiler", ()
    def begin(self, step, first): self.note("begin")
    def step(self, step): self.note("step")
    def end(self): self.note("end")
    def write(self, first, last): return (os.environ["NOTES"],)
    def discard(self): pass
    def note(self, what):
        with open(os.environ["NOTES"], "a") as notes:
            print(what, subscription_holder() or "nobody", refusal(), file=notes)

def refusal():
    try:
        msmon.Monitor().start()
    except CommandRefused as error:
        return error.message
    return "Monitor started"

backend.BACKENDS = {"sys": ("__main__", "make")}
make = lambda plan: Profiler()
msmon.init(rank=0)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
while not ended.wait(0.02):
    msmon.step()
"""


@pytest.fixture
def setting(tmp_path, monkeypatch):
    """Environment of a daemon and a job with a simulated MSPTI."""
    (tmp_path / "run").mkdir(mode=0o700)
    names = {"MSMON_RUNTIME_DIR": "run", "MSMON_KEYS_DIR": "keys", "MSMONITOR_LOG_PATH": "log"}
    for name, folder in names.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("MSMON_SIMULATE", "rate=2000")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    programs = (["-m", "msmon.commands.daemon", "--heartbeat-s", "0.2"], ["-c", JOB])
    running = [
        subprocess.Popen([sys.executable, *program], stdin=subprocess.PIPE) for program in programs
    ]
    yield tmp_path
    for process in reversed(running):
        process.terminate()
        process.communicate()


def ask(message) -> Reply:
    with Client(local_endpoint(os.environ)) as client:
        return client.request(message, 20.0)


def row_when(matches, what: str) -> StatusRow:
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        try:
            rows = ask(StatusRequest()).rows
        except BusError:  # not up yet
            rows = []
        if rows and matches(rows[0]):
            return rows[0]
        time.sleep(0.05)
    raise AssertionError(what)


def test_a_trace_pauses_monitoring_and_the_database_tells_of_the_gap(setting):
    row_when(lambda row: row.step > 5, "steps")
    out = setting / "out"
    reply = ask(MonitorRequest("start", {"kinds": "Kernel", "log_file": str(out)}))
    assert reply.outcome == "ok", reply
    fields = {"iterations": 3, "log_file": str(setting / "traces")}
    assert "is recording" in ask(TraceRequest("start", fields)).rows[0].text
    reply = ask(TraceRequest("start", fields, pause_monitor=True))
    assert reply.outcome == "ok", reply
    ended = row_when(lambda row: row.trace.state in ("done", "failed"), "the trace")
    assert ended.trace.state == "done", ended.trace
    row = row_when(lambda row: row.state == "monitoring", "monitoring again")
    assert ask(MonitorRequest("stop")).outcome == "ok"
    (path,) = row.files
    with sqlite3.connect(path) as database:
        gaps = database.execute("SELECT reason FROM MSMON_GAPS").fetchall()
    database.close()
    assert gaps == [("paused for a trace",)]
    notes = (setting / "notes").read_text().splitlines()
    assert [line.split()[0] for line in notes] == ["begin", "step", "step", "end"]
    assert all(" nobody nputrace (" in line and "holds this process" in line for line in notes)
