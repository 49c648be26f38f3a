"""The child processes of ``msmon demo``: the daemon, or one simulated rank.

The kernel sends them SIGTERM when the demo ends, even if it is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

import msmon

PR_SET_PDEATHSIG = 1
"""Option of prctl(2): sets the signal that a process gets when its parent ends."""


def end_with_parent() -> None:
    """Make the kernel send SIGTERM to this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def run_rank(step_s: float) -> None:
    """Act as a training process: call ``msmon.step()`` every ``step_s`` until SIGTERM.

    Steps end when those of the simulated device do, at multiples of ``step_s`` since the epoch, so
    that all ranks go on together as those of a real job.
    """
    ended = threading.Event()
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    msmon.init()
    while not ended.wait(step_s - time.time() % step_s) and os.getppid() == parent:
        msmon.step()
    msmon.shutdown()


def run_daemon() -> int:
    """Run ``msmon-daemon``."""
    from msmon.commands.daemon.command import main as daemon_main

    return daemon_main()


def main() -> None:
    """Run as ``python -m msmon.commands.demo.child rank SECONDS`` or ``daemon OPTIONS``."""
    end_with_parent()
    role = sys.argv.pop(1)
    if role == "rank":
        run_rank(float(sys.argv[1]))
    else:
        sys.exit(run_daemon())


if __name__ == "__main__":
    main()
