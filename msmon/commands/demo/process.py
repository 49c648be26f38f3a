"""What the processes of ``msmon demo`` run: the daemon, or one simulated rank.

Both end with the demo, however it ends: the kernel tells them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

import msmon

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal this process gets when its parent ends."""


def end_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def run_rank(step_s: float) -> None:
    """Be a training process: one ``msmon.step()`` every ``step_s`` until SIGTERM."""
    ended = threading.Event()
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    msmon.init()
    while not ended.wait(step_s) and os.getppid() == parent:
        msmon.step()
    msmon.shutdown()


def run_daemon() -> int:
    """Be ``msmon-daemon`` with one sink more, which no other daemon offers."""
    from msmon.commands.daemon.command import main as daemon_main
    from msmon.sinks import catalog

    catalog.BUILT_IN["demo-totals"] = "msmon.commands.demo.totals:TotalsSink"
    return daemon_main()


def main() -> None:
    """Run as ``python -m msmon.commands.demo.process rank SECONDS`` or ``daemon OPTIONS``."""
    end_with_parent()
    role = sys.argv.pop(1)
    if role == "rank":
        run_rank(float(sys.argv[1]))
    else:
        sys.exit(run_daemon())


if __name__ == "__main__":
    main()
