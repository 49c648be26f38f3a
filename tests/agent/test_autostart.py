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

AFTER = """
import json, sys, threading
print(json.dumps({
    "modules": sorted(name for name in sys.modules if name.startswith("msmon")),
    "threads": threading.active_count(),
}))
"""


def started(tmp_path: Path, environ: dict[str, str], program: str = AFTER, *more: str) -> dict:
    """Return what is there after a Python has read the file, as it does at its start."""
    program = PTH.read_text() + program
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", program, *more],
        env={**kept, "MSMON_RUNTIME_DIR": str(tmp_path), **environ},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_nothing_happens_where_nobody_asks(tmp_path):
    assert started(tmp_path, RANK) == {"modules": [], "threads": 1}


def test_an_evident_rank_has_its_agent_at_once(tmp_path):
    assert started(tmp_path, {"MSMONITOR_USE_DAEMON": "1", **RANK})["threads"] == 3
    assert started(tmp_path, {"KINETO_USE_DAEMON": "1", **RANK})["threads"] == 3


@pytest.mark.parametrize("environ", [{}, {"RANK": "0"}, {"SLURM_PROCID": "1"}])
def test_any_other_process_loads_only_what_decides(tmp_path, environ):
    seen = started(tmp_path, {"MSMONITOR_USE_DAEMON": "1", **environ})
    assert seen["threads"] == 1
    assert "msmon.agent.lifecycle" not in seen["modules"]


def test_a_child_of_a_rank_does_nothing(tmp_path):
    program = f"""
import subprocess, sys
print(subprocess.run([sys.executable, "-c", {(PTH.read_text() + AFTER)!r}], capture_output=True,
                     text=True).stdout)
"""
    seen = started(tmp_path, {"MSMONITOR_USE_DAEMON": "1", **RANK}, program)
    assert seen["threads"] == 1
    assert "msmon.agent.lifecycle" not in seen["modules"]


TRAINS = """
import json, sys, threading, types
sys.path.insert(0, sys.argv[1])
import torch
before = threading.active_count()
import msmon
msmon.step()
print(json.dumps({"before": before, "after": threading.active_count()}))
"""


def test_a_framework_is_watched_and_the_first_step_starts_the_agent(tmp_path):
    (tmp_path / "torch.py").write_text("")
    environ = {"MSMONITOR_USE_DAEMON": "1"}
    assert started(tmp_path, environ, TRAINS, str(tmp_path)) == {"before": 1, "after": 3}
