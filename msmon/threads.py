"""Threads, locks and queues of ours inside somebody else's process.

They leave the job's signals alone. A signal to a process goes to any thread that does not block
it. A job that blocks SIGTERM or SIGUSR1 in its own threads and collects it with ``sigwait`` or
``signalfd`` (as for Slurm's ``--signal``) would be killed through a thread of ours that doesn't.

They are the operating system's, whatever the job does to Python's. ``gevent.monkey.patch_all()``
and ``eventlet.monkey_patch()`` replace threads by greenlets and locks by ones that switch
greenlets. A greenlet that waits in libzmq or MSPTI would stop the whole job, and
``threading.Thread`` fails when it is patched while a thread runs. So nothing here is built on the
module ``threading``. In the training process, take what is here instead of ``threading``,
``queue.SimpleQueue`` and ``time.sleep``, and ``posix`` instead of ``os`` to read and write.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import posix
import signal
import sys
from _queue import Empty as Empty
from _queue import SimpleQueue as SimpleQueue
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading

_FAULTS = {
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
    *(signal.SIGTRAP, signal.SIGSYS),
}
"""Signals that a thread causes itself, by a bad address for example. They are never blocked: a
blocked one ends the process at once, and faulthandler could not print its report."""

UNBLOCK = "import signal; signal.pthread_sigmask(signal.SIG_SETMASK, ()); "
"""Begins a Python program that a thread of ours starts: the mask is inherited."""


def _own_thread_module() -> Any:
    """Return an instance of the interpreter's module ``_thread`` for us alone.

    Nobody has patched it. And its locks are of another type than ``threading``'s, so eventlet,
    which looks for existing locks to exchange them, does not find ours (Python 3.10 and later).
    """
    everybodys = sys.modules.pop("_thread")
    try:
        return importlib.import_module("_thread")  # built in: a new module with its own contents
    finally:
        sys.modules["_thread"] = everybodys


_own = _own_thread_module()

Lock: Callable[[], threading.Lock] = _own.allocate_lock
RLock: Callable[[], threading.RLock] = _own.RLock
thread_id: Callable[[], int] = _own.get_ident
"""Returns a number of the calling thread that no other thread has at this moment."""


def sleep(seconds: float) -> None:
    """Have the calling thread do nothing for a time. ``time.sleep`` may switch greenlets."""
    never_free = Lock()
    never_free.acquire()
    never_free.acquire(timeout=seconds)


class NativeThread:
    """A thread of the operating system that blocks signals and does not hold up the exit.

    It is written by the thread that starts it, and its end by itself. What ``target`` raises
    is dropped: nothing of ours may print into the job. ``name`` is shown by ``top -H`` and
    ``ps -L``, cut after 15 characters; ``threading.enumerate()`` does not know the thread.
    """

    def __init__(self, target: Callable[..., None], name: str, *arguments: Any) -> None:
        self._target = target
        self._name = name
        self._arguments = arguments
        self._running = Lock()
        """Held while the thread runs."""
        self._started = False
        self._id = 0

    def start(self) -> None:
        """Start the thread. Raises RuntimeError where the process can't start any more.

        A new thread inherits the signal mask of its creator, from its first instruction on. So
        the mask of the calling thread is changed while the thread starts, and put back. Threads
        that the new one makes itself, such as ZeroMQ's and MSPTI's, inherit the mask as well.
        """
        self._running.acquire()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        try:
            _own.start_new_thread(self._run, ())
            self._started = True
        except BaseException:
            self._running.release()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def join(self, timeout_s: float = -1) -> bool:
        """Wait until the thread has ended, ``timeout_s`` at most; False when it still runs.

        One that was never started counts as ended.
        """
        ended = self._running.acquire(timeout=timeout_s)
        if ended:
            self._running.release()
        return ended

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._started and self._running.locked()

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is this one."""
        return self._id == thread_id()

    def _run(self) -> None:
        self._id = thread_id()
        try:
            with contextlib.suppress(BaseException):  # boundary: the job must not notice
                self._show_name()
                self._target(*self._arguments)
        finally:
            self._id = 0
            self._running.release()

    def _show_name(self) -> None:
        with contextlib.suppress(OSError):  # no /proc: the thread keeps the program's name
            path = f"/proc/self/task/{_own.get_native_id()}/comm"
            task = posix.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                posix.write(task, self._name.encode())
            finally:
                os.close(task)
