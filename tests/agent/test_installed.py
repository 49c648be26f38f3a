"""Jobs whose msmon is upgraded or removed while they run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import msmon

JOB = """
import types
sys.modules["torch"] = types.ModuleType("torch")
msmon.init(rank=0)
while not stopped():
    print(len(msmon.agent.lifecycle.__name__), flush=True)
"""
WITH_NUMPY = "import numpy\n" + JOB


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, which a test may take away."""
    own = tmp_path / "installed" / "msmon"
    shutil.copytree(Path(msmon.__file__).parent, own, ignore=shutil.ignore_patterns("__pycache__"))
    return own


@pytest.fixture
def start(job, copy, monkeypatch):
    monkeypatch.chdir(copy.parent)  # Python looks there first
    paths = [str(copy.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return lambda program: job(program, PYTHONPATH=os.pathsep.join(paths))


def remove(package: Path) -> None:
    shutil.rmtree(package)


def upgrade(package: Path) -> None:
    shutil.rmtree(package)
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "99.1.0"\n')


CHANGES = [(remove, "and is not installed any more"), (upgrade, "and 99.1.0 is installed")]


@pytest.mark.parametrize(("replace", "told"), CHANGES)
def test_a_start_that_needs_what_is_gone_says_so(daemon, start, copy, replace, told):
    start(JOB)
    daemon.await_hello()
    daemon.await_status(lambda status: bool(status.library), "that the agent is at work")
    replace(copy)
    answer = daemon.command("monitor.start", kinds="Kernel")
    assert (answer.ok, answer.text) == (False, f"msmon {msmon.__version__} runs in this job {told}")
    assert answer.next_step == "restart the job to use what is installed"


@pytest.mark.parametrize("replace", [remove, upgrade])
def test_a_trace_is_accepted_all_the_same(daemon, start, copy, replace, tmp_path):
    start(JOB)
    daemon.await_hello()
    daemon.await_status(lambda status: bool(status.library), "that the agent is at work")
    replace(copy)
    answer = daemon.command(
        "trace.start", iterations=2, start_step=5, log_file=str(tmp_path / "out")
    )
    assert answer.ok, answer
    assert answer.text.startswith("torch.profiler will trace steps 5 to 6")


def test_a_job_with_numpy_has_loaded_beforehand_what_a_session_needs(daemon, start, copy, wait_for):
    started = start(WITH_NUMPY)
    daemon.await_hello()
    maps = Path(f"/proc/{started.process.pid}/maps")
    wait_for(lambda: "numpy" in maps.read_text(), "numpy")
    daemon.await_status(lambda status: bool(status.library), "that the agent is at work")
    wait_for(lambda: daemon.command("monitor.start", kinds="Kernel").ok, "a session")
    assert daemon.command("monitor.stop").ok
    remove(copy)
    assert daemon.command("monitor.start", kinds="Kernel").ok
    assert daemon.command("monitor.stop").ok
