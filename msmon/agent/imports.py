"""Imports on threads of ours, for which a fork waits, and whoever patches threads.

The child of a fork has only the thread that forked. If another thread was importing a module at
that moment, the lock of that module stays taken in the child, which hangs for ever when it
imports the module too. Example: numpy is imported for the first session while the job forks its
DataLoader workers.

The wait can't be a hook of ``os.register_at_fork``: hooks that were registered later run earlier
and keep their locks, as logging's does. The import may need such a lock, so it would never end.

gevent and eventlet exchange the function that tells threads apart, by which Python knows who holds
the lock of a module. A lock that was taken before and is released afterwards stays taken.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from msmon.threads import Lock

WAIT_LIMIT_S = 5.0
"""A fork waits no longer. Without the limit a failure here could stop the job."""

PATCHERS = ("gevent.monkey", "eventlet.patcher")
"""Modules that a job imports to patch threads: have :func:`wait` called after their import."""

_importing = Lock()
"""Held by the thread of ours that imports."""


@contextlib.contextmanager
def before_forks() -> Iterator[None]:
    """Have ``os.fork`` of other threads wait until the block has ended."""
    with _importing:
        job_fork = os.fork

        def fork() -> int:
            wait()
            return job_fork()

        os.fork = fork
        try:
            yield
        finally:
            if os.fork is fork:  # else somebody has put another in its place
                os.fork = job_fork


def wait(_: object = None) -> None:
    """Return when no thread of ours imports, after ``WAIT_LIMIT_S`` at the latest."""
    if _importing.acquire(timeout=WAIT_LIMIT_S):
        _importing.release()


def _in_child() -> None:
    global _importing
    _importing = Lock()


os.register_at_fork(after_in_child=_in_child)
