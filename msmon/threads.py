"""Threads of ours inside somebody else's process: they leave its signals alone.

A signal to a process goes to any thread that does not block it. A job that blocks SIGTERM or
SIGUSR1 in its own threads and collects it with ``sigwait`` or ``signalfd`` (as for Slurm's
``--signal``) would be killed through a thread of ours that doesn't.
"""

from __future__ import annotations

import signal
import threading

_FAULTS = {
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
    *(signal.SIGTRAP, signal.SIGSYS),
}
"""Signals that a thread causes itself, by a bad address for example. They are never blocked: a
blocked one ends the process at once, and faulthandler could not print its report."""

UNBLOCK = "import signal; signal.pthread_sigmask(signal.SIG_SETMASK, ()); "
"""Begins a Python program that a thread of ours starts: the mask is inherited."""


def start_without_signals(thread: threading.Thread) -> None:
    """Start a thread that blocks signals from its first instruction.

    A new thread inherits the signal mask of its creator. So the mask of the calling thread is
    changed while the thread starts, and put back. Threads that the new one makes itself, such
    as ZeroMQ's and MSPTI's, inherit the mask as well. Raises RuntimeError as
    ``Thread.start`` does.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
