"""A rank that also starts what a job may start: DataLoader workers, child processes, a pool.

    busy_job.py EXIT_CODE_OF_RANK_1 [alone]

Trains until the file MSMON_TEST_STOP_FILE exists. "alone": starts no other process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed
import without_compiler
from torch.utils.data import DataLoader, TensorDataset

FORKING = "import os, time\nos.fork()\ntime.sleep(600)\n"


def nap(_: int) -> None:
    time.sleep(0.2)


def main() -> None:
    if "alone" in sys.argv:
        without_compiler.install()
    torch.distributed.init_process_group("gloo")
    others = contextlib.nullcontext() if "alone" in sys.argv else company()
    with others:
        train(workers=0 if "alone" in sys.argv else 4)
    if torch.distributed.get_rank() == 1:
        os._exit(int(sys.argv[1]))


@contextlib.contextmanager
def company() -> Iterator[None]:
    """Start a child that forks, and a pool with a spawned process."""
    child = subprocess.Popen([sys.executable, "-c", FORKING], start_new_session=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        naps = pool.map_async(nap, range(2))
        yield
        naps.wait()
    os.killpg(child.pid, 9)
    child.wait()


def train(workers: int) -> None:
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(64, 8))
    while not os.path.exists(os.environ["MSMON_TEST_STOP_FILE"]):
        for (batch,) in DataLoader(data, batch_size=16, num_workers=workers):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
