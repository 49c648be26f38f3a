"""Checks, before a socket is made, that this process has what libzmq needs for it.

libzmq aborts the whole process when it gets no descriptor for an epoll set or can't start a
thread. That must not happen to a training job, so both are tried first. Nor may libzmq get a
descriptor that the job writes to: see :func:`hold_standard_descriptors`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from contextlib import AbstractContextManager
from typing import Any

from msmon.errors import BusError
from msmon.threads import Lock, NativeThread

DESCRIPTORS = 16
"""libzmq takes six for the first socket of a process and four for its watch and connection; the
rest is for what the job opens at the same moment."""

THREADS = 2
"""Its own: one for input and output, one that closes sockets."""


def hold_standard_descriptors() -> None:
    """Put /dev/null where standard input, output or error is closed.

    The next file of the process would get that number, say a pipe of libzmq, and what the job
    or a library then prints to "stdout" would go into it: libzmq ends the process for that.
    The job's children find the descriptor closed, as they would without us.
    """
    for wanted in (0, 1, 2):
        try:
            os.fstat(wanted)
        except OSError:
            taken = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            if taken != wanted:  # another thread was quicker
                os.close(taken)


def require_headroom() -> None:
    """Raise BusError unless the process can have that many descriptors and threads more."""
    with contextlib.suppress(OSError):  # the next look names what is missing
        hold_standard_descriptors()
    _require_descriptors()
    _require_threads()


def _require_descriptors() -> None:
    taken: list[int] = []
    try:
        for _ in range(DESCRIPTORS):
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise BusError(f"can't open {os.devnull}: {error.strerror}") from None
        raise BusError(
            "this process has too few file descriptors left for a connection to the daemon",
            "raise its limit (ulimit -n)",
        ) from None
    finally:
        for descriptor in taken:
            os.close(descriptor)


def _require_threads() -> None:
    barrier = Lock()
    with barrier:  # all of them at the same time
        try:
            for _ in range(THREADS):
                NativeThread(_pass, "msmon-probe", barrier).start()
        except RuntimeError:
            raise BusError(
                "this process may start no more threads, and a connection to the daemon needs two",
                "raise its limit (ulimit -u, or pids.max of its control group)",
            ) from None


def _pass(barrier: AbstractContextManager[Any]) -> None:
    with barrier:
        pass
