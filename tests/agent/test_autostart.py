"""What the interpreter's start does where the environment asks for the agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import msmon.compat

PTH = Path(msmon.compat.__file__).with_name("msmon-autostart.pth")
RANK = {"RANK": "0", "LOCAL_RANK": "0"}
ASKED = {"MSMONITOR_USE_DAEMON": "1"}

AFTER = """
import json, sys
lifecycle = sys.modules.get("msmon.agent.lifecycle")
print(json.dumps({
<<<<<<< HEAD
    "modules": sorted(sys.modules),
    "threads": sorted(thread.name for thread in threading.enumerate()),
=======
    "modules": sorted(name for name in sys.modules if name.startswith("msmon")),
    "agent": lifecycle is not None and lifecycle.current_agent() is not None,
>>>>>>> f1e88ae (Agent: threads, locks and waits are the system's, so a job under gevent or eventlet goes on as before)
}))
"""

WITH_AGENT = """
import threading, time
while "msmon-link" not in [thread.name for thread in threading.enumerate()]:
    time.sleep(0.01)
"""

<<<<<<< HEAD

def started(tmp_path: Path, environ: dict[str, str], program: str, *arguments: str) -> dict:
    """Return what a script prints that a Python runs which reads the .pth file at its start."""
    directory = tmp_path / "site-packages"
    directory.mkdir(exist_ok=True)
    (directory / PTH.name).write_text(PTH.read_text())
    reads_it = f"import site\nsite.addsitedir({str(directory)!r})\n"
    (tmp_path / "sitecustomize.py").write_text(reads_it)
    script = tmp_path / "script.py"
    script.write_text(program)
=======
def started(tmp_path: Path, environ: dict[str, str], program: str = AFTER, *more: str) -> dict:
    """Return what is there after a Python has read the file, as it does at its start."""
    program = PTH.read_text() + program
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
>>>>>>> f1e88ae (Agent: threads, locks and waits are the system's, so a job under gevent or eventlet goes on as before)
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**own_environ(tmp_path), **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def own_environ(tmp_path: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    ours = Path(msmon.__file__).parent.parent
    return {**kept, "PYTHONPATH": f"{tmp_path}:{ours}", "MSMON_RUNTIME_DIR": str(tmp_path)}


def msmon_modules(seen: dict) -> list[str]:
    return [name for name in seen["modules"] if name.split(".")[0] == "msmon"]


def test_nothing_happens_where_nobody_asks(tmp_path):
<<<<<<< HEAD
    seen = started(tmp_path, RANK, AFTER)
    assert (msmon_modules(seen), seen["threads"]) == ([], ["MainThread"])


@pytest.mark.parametrize("variable", ["MSMONITOR_USE_DAEMON", "KINETO_USE_DAEMON"])
def test_an_evident_rank_gets_its_agent(tmp_path, variable):
    seen = started(tmp_path, {variable: "1", **RANK}, WITH_AGENT + AFTER)
    assert {"msmon-collector", "msmon-link"} <= set(seen["threads"])


@pytest.mark.parametrize("environ", [ASKED, {**ASKED, **RANK}])
def test_before_the_first_line_only_the_standard_library_is_loaded(tmp_path, environ):
    plain = set(started(tmp_path, {}, AFTER)["modules"])
    added = set(started(tmp_path, environ, AFTER)["modules"]) - plain
    strangers = {name.split(".")[0] for name in added} - set(sys.stdlib_module_names)
    assert strangers == {"msmon"}


def test_numpy_is_not_loaded_with_the_agent(tmp_path):
    seen = started(tmp_path, {**ASKED, **RANK}, WITH_AGENT + AFTER)
    assert "zmq" in seen["modules"]
    assert "numpy" not in seen["modules"]


VENDORS = """
import os, sys
sys.path.insert(0, sys.argv[1])
"""


def test_a_job_may_bring_a_library_of_its_own(tmp_path):
    """Its script names the directory in its first lines, and the agent takes that copy too."""
    own = tmp_path / "vendored" / "msgpack"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("from_the_job = True\nraise ImportError('too old')\n")
    program = VENDORS + "import time\ntime.sleep(1.5)\n" + AFTER
    seen = started(tmp_path, {**ASKED, **RANK}, program, str(own.parent))
    assert "msgpack" not in seen["modules"]
    assert "msmon-link" not in seen["threads"]
=======
    assert started(tmp_path, RANK) == {"modules": [], "agent": False}


def test_an_evident_rank_has_its_agent_at_once(tmp_path):
    assert started(tmp_path, {"MSMONITOR_USE_DAEMON": "1", **RANK})["agent"]
    assert started(tmp_path, {"KINETO_USE_DAEMON": "1", **RANK})["agent"]
>>>>>>> f1e88ae (Agent: threads, locks and waits are the system's, so a job under gevent or eventlet goes on as before)


@pytest.mark.parametrize("environ", [{}, {"RANK": "0"}, {"SLURM_PROCID": "1"}])
def test_any_other_process_loads_only_what_decides(tmp_path, environ):
<<<<<<< HEAD
    seen = started(tmp_path, {**ASKED, **environ}, AFTER)
    assert seen["threads"] == ["MainThread"]
=======
    seen = started(tmp_path, {"MSMONITOR_USE_DAEMON": "1", **environ})
    assert not seen["agent"]
>>>>>>> f1e88ae (Agent: threads, locks and waits are the system's, so a job under gevent or eventlet goes on as before)
    assert "msmon.agent.lifecycle" not in seen["modules"]


def test_a_child_of_a_rank_does_nothing(tmp_path):
    child = tmp_path / "child.py"
    child.write_text(AFTER)
    program = f"""
import subprocess, sys
child = [sys.executable, {str(child)!r}]
print(subprocess.run(child, capture_output=True, text=True).stdout)
"""
<<<<<<< HEAD
    seen = started(tmp_path, {**ASKED, **RANK}, program)
    assert seen["threads"] == ["MainThread"]
=======
    seen = started(tmp_path, {"MSMONITOR_USE_DAEMON": "1", **RANK}, program)
    assert not seen["agent"]
>>>>>>> f1e88ae (Agent: threads, locks and waits are the system's, so a job under gevent or eventlet goes on as before)
    assert "msmon.agent.lifecycle" not in seen["modules"]


TRAINS = """
<<<<<<< HEAD
import json, sys, threading
=======
import json, sys
sys.path.insert(0, sys.argv[1])
>>>>>>> f1e88ae (Agent: threads, locks and waits are the system's, so a job under gevent or eventlet goes on as before)
import torch
import msmon
from msmon.agent import lifecycle
before = lifecycle.current_agent() is not None
msmon.step()
print(json.dumps({"before": before, "after": lifecycle.current_agent() is not None}))
"""


def test_a_framework_is_watched_and_the_first_step_starts_the_agent(tmp_path):
    (tmp_path / "torch.py").write_text("")
<<<<<<< HEAD
    assert started(tmp_path, ASKED, TRAINS) == {"before": 1, "after": 3}


FORKS = """
import json, os, sys, threading, time
WAYS = []
def child():
    import msmon.agent.lifecycle, zmq
    os._exit(0)
end_s = time.monotonic() + 2.5
while time.monotonic() < end_s:
    pid = os.fork()
    if pid == 0:
        child()
    WAYS.append(os.waitpid(pid, 0)[1])
print(json.dumps(sorted(set(WAYS))))
"""


def test_a_child_that_is_forked_while_the_agent_is_loaded_can_import_it_too(tmp_path):
    assert started(tmp_path, {**ASKED, **RANK}, FORKS) == [0]
=======
    environ = {"MSMONITOR_USE_DAEMON": "1"}
    assert started(tmp_path, environ, TRAINS, str(tmp_path)) == {"before": False, "after": True}
>>>>>>> f1e88ae (Agent: threads, locks and waits are the system's, so a job under gevent or eventlet goes on as before)
