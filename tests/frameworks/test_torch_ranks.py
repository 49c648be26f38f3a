"""A notebook that starts its ranks with torch.multiprocessing, which only PyTorch numbers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import msmon.compat

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch is not installed; scripts/test --full has it",
)

PTH = Path(msmon.compat.__file__).with_name("msmon-autostart.pth")

NOTEBOOK = """
import os, sys, time
import msmon, torch

def train(rank, meeting):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], 0.1)
    while True:
        parameter.grad = torch.ones(3)
        optimizer.step()
        time.sleep(0.05)

if __name__ == "__main__":
    msmon.init()
    torch.multiprocessing.start_processes(
        train, (sys.argv[1],), nprocs=2, start_method=sys.argv[2])
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_the_processes_that_train_are_the_ranks(daemon, environ, wait_for, tmp_path, method):
    (tmp_path / "sitecustomize.py").write_text(PTH.read_text())
    script = tmp_path / "notebook.py"
    script.write_text(NOTEBOOK)
    notebook = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "meeting"), method],
        env={
            **environ,
            "MSMONITOR_USE_DAEMON": "1",
            "PYTHONPATH": f"{tmp_path}:{environ.get('PYTHONPATH', '')}",
        },
    )
    try:

        def seen() -> list[tuple[int, int]]:
            return sorted((row.rank, len(row.waits_for or ())) for row in daemon.rows() or [])

        wait_for(lambda: seen() == [(-1, 2), (0, 0), (1, 0)], "the notebook waits for both ranks")
        assert daemon.rows()[0].pid == notebook.pid
        started = daemon.command("npu-monitor", "start", "--kind", "Kernel")
        assert started.returncode == 0, started.stdout + started.stderr
        assert "2 processes" in started.stdout or started.stdout.count("monitoring started") == 2
    finally:
        notebook.kill()
        notebook.wait()
