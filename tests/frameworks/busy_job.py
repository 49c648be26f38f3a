"""A rank that trains beside all that a job may start: DataLoader workers, children, a pool.

    busy_job.py EXIT_CODE_OF_RANK_1

Trains until the file MSMON_TEST_STOP_FILE exists.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

import torch
import torch.distributed
from torch.utils.data import DataLoader, TensorDataset

FORKING = "import os, time\nos.fork()\ntime.sleep(600)\n"


def nap(_: int) -> None:
    time.sleep(0.2)


def main() -> None:
    torch.distributed.init_process_group("gloo")
    child = subprocess.Popen([sys.executable, "-c", FORKING], start_new_session=True)
    pool = multiprocessing.get_context("spawn").Pool(2)
    naps = pool.map_async(nap, range(4))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(64, 8))
    while not os.path.exists(os.environ["MSMON_TEST_STOP_FILE"]):
        for (batch,) in DataLoader(data, batch_size=16, num_workers=4):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    naps.wait()
    pool.terminate()
    os.killpg(child.pid, 9)
    child.wait()
    if torch.distributed.get_rank() == 1:
        os._exit(int(sys.argv[1]))


if __name__ == "__main__":
    main()
