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

THREADS = """
import glob
def threads():
    names = set()
    for path in glob.glob("/proc/self/task/*/comm"):
        try:
            with open(path) as file:
                names.add(file.read().strip())
        except OSError:
            pass  # the thread has just ended
    return sorted(name for name in names if name.startswith("msmon-"))
"""

AFTER = f"""
{THREADS}
import json, sys
print(json.dumps({{"modules": sorted(sys.modules), "threads": threads()}}))
"""

WITH_AGENT = f"""
{THREADS}
import time
while not {{"msmon-link", "msmon-collector"}} <= set(threads()):
    time.sleep(0.01)
"""


def started(tmp_path: Path, environ: dict[str, str], program: str, *arguments: str) -> dict:
    """Return what a script prints that a Python runs which reads the .pth file at its start."""
    directory = tmp_path / "site-packages"
    directory.mkdir(exist_ok=True)
    (directory / PTH.name).write_text(PTH.read_text())
    reads_it = f"import site\nsite.addsitedir({str(directory)!r})\n"
    (tmp_path / "sitecustomize.py").write_text(reads_it)
    script = tmp_path / "script.py"
    script.write_text(program)
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
    seen = started(tmp_path, RANK, AFTER)
    assert (msmon_modules(seen), seen["threads"]) == ([], [])


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


@pytest.mark.parametrize("environ", [{}, {"RANK": "0"}, {"SLURM_PROCID": "1"}])
def test_any_other_process_loads_only_what_decides(tmp_path, environ):
    seen = started(tmp_path, {**ASKED, **environ}, AFTER)
    assert seen["threads"] == []
    assert "msmon.agent.lifecycle" not in seen["modules"]


def test_a_child_of_a_rank_does_nothing(tmp_path):
    child = tmp_path / "child.py"
    child.write_text(AFTER)
    program = f"""
import subprocess, sys
child = [sys.executable, {str(child)!r}]
print(subprocess.run(child, capture_output=True, text=True).stdout)
"""
    seen = started(tmp_path, {**ASKED, **RANK}, program)
    assert seen["threads"] == []
    assert "msmon.agent.lifecycle" not in seen["modules"]


TRAINS = """
import json, sys
import torch
import msmon
from msmon.agent import lifecycle
before = lifecycle.current_agent() is not None
msmon.step()
print(json.dumps({"before": before, "after": lifecycle.current_agent() is not None}))
"""


def test_a_framework_is_watched_and_the_first_step_starts_the_agent(tmp_path):
    (tmp_path / "torch.py").write_text("")
    assert started(tmp_path, ASKED, TRAINS) == {"before": False, "after": True}


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
