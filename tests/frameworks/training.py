"""A training loop on the CPU, under torchrun: two gloo ranks, some ms per step.

Every iteration is annotated with its number, so that tests find it in the trace. The loop ends
when the file exists that the first argument names.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed

import msmon

msmon.init()
torch.distributed.init_process_group("gloo")
end = Path(sys.argv[1])
torch.distributed.new_group([0, 1])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
unused = torch.optim.SGD(model.parameters(), 0.01)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
step = 0
going_on = torch.ones(1)
while going_on.item():
    with torch.profiler.record_function(f"iteration {step}"):
        for _ in range(2):  # gradient accumulation: two passes, one update
            model(torch.randn(4, 8)).sum().backward()
        unused.step()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        going_on = torch.tensor([0.0 if end.exists() else 1.0])
        torch.distributed.all_reduce(going_on, torch.distributed.ReduceOp.MIN)
    step += 1
torch.distributed.destroy_process_group()
