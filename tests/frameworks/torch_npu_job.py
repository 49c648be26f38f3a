"""One rank under torch_npu's own dynamic profiler. It trains until its standard input ends.

    torch_npu_job.py SOURCES MEMORY_NAME with-agent|without-agent

At the end it prints the calls that the dynamic profiler made to torch_npu's profiler.
"""

from __future__ import annotations

import os
import select
import sys
import time

import torch
import torch_npu_sources
import without_compiler


def main() -> None:
    sources, memory_name, agent = sys.argv[1:]
    os.environ["MSMONITOR_USE_DAEMON"] = (
        "1"  # Set only now, so that an installed msmon-autostart.pth did not act on it.
    )
    if agent == "with-agent":  # In real jobs msmon-autostart.pth does this.
        from msmon.agent import autostart

        autostart.start()
    without_compiler.install()
    profile = torch_npu_sources.start(sources, memory_name)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    print("training", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.02)
    print("profiler calls:", *profile.calls, flush=True)


if __name__ == "__main__":
    main()
