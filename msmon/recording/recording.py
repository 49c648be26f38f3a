"""A recording on a thread of its own, for the Monitor API and the ``mspti`` monitors.

That thread makes every MSPTI call, and holds no lock of ours meanwhile. A caller gives it a task
and waits for the result of that task alone; the GIL is free while it waits. Records are delivered
regularly.
"""

from __future__ import annotations

import atexit
import math
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from msmon.errors import CommandRefused, MsmonError
from msmon.recording.loading import open_recorder
from msmon.recording.recorder import Recorder
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.sessions import Drops
from msmon.threads import Empty, Lock, NativeThread, SimpleQueue

T = TypeVar("T")

FLUSH_INTERVAL_S = 0.25


class _Task:
    """A call for the recording's thread, on which another thread waits.

    ``run`` is called on the recording's thread, ``wait`` on the other.
    """

    def __init__(self, function: Callable[[Recorder], Any]) -> None:
        self._function = function
        self._pending = Lock()  # not a Future: its lock may be one for greenlets
        self._pending.acquire()
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self, recorder: Recorder) -> None:
        """Make the call, and let the other thread have what it returns or raises."""
        try:
            self._result = self._function(recorder)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for it
            self._error = error
        self._pending.release()

    def wait(self) -> Any:
        """Return or raise what the call does."""
        self._pending.acquire()
        if self._error is not None:
            raise self._error
        return self._result


class Recording:
    """Collects until :meth:`stop`, and calls ``consume`` with batches on its own thread.

    A process has only one MSPTI subscription. If somebody else asks for it meanwhile, the
    error names ``purpose`` as its holder.
    """

    def __init__(
        self,
        purpose: str,
        consume: Callable[[list[Batch]], None],
        flush_interval_s: float = FLUSH_INTERVAL_S,
    ) -> None:
        self.flush_interval_s = flush_interval_s
        self._purpose = purpose
        self._consume = consume
        self._recorder: Recorder | None = None
        self._thread: NativeThread | None = None
        self._tasks: SimpleQueue[_Task] = SimpleQueue()
        self._pid = 0
        self._ending = Lock()
        self._ended = True

    @property
    def active(self) -> bool:
        """True while it records. False in a forked child, which doesn't have the thread."""
        return self._recorder is not None and self._recorder.active and self._pid == os.getpid()

    @property
    def lost(self) -> Drops:
        """Records lost before they could be read, per stage; None: unknown how many."""
        return self._recorder.lost if self._recorder is not None else {}

    @property
    def problems(self) -> tuple[str, ...]:
        """MSPTI calls that failed since the start, and the last error that cost records."""
        if self._recorder is None:
            return ()
        error = self._recorder.losses.error
        return (*self._recorder.problems, *([f"records not read: {error}"] if error else ()))

    def start(
        self,
        kinds: frozenset[ActivityKind],
        disabled_domains: tuple[str, ...] = (),
        duration_s: float = 0.0,
    ) -> dict[str, str]:
        """Subscribe and begin to collect; returns kind name → reason for what failed.

        Stops by itself after ``duration_s`` (0: never). Raises LibraryUnavailable or
        NativeCodeUnavailable, CommandRefused when somebody else records in this
        process, MsptiError when MSPTI can't be subscribed to.
        """
        if self.active:
            raise CommandRefused(f"{self._purpose} is already recording", "stop it first")
        self._recorder, _ = open_recorder(self._purpose)
        self._pid = os.getpid()
        self._tasks = SimpleQueue()
        self._ended = False
        self._thread = NativeThread(self._run, "msmon-recording", duration_s)
        self._thread.start()
        unavailable = self.call(lambda recorder: recorder.start(kinds, disabled_domains))
        atexit.register(self.stop)
        return unavailable

    def call(self, function: Callable[[Recorder], T]) -> T:
        """Run ``function`` on the recording's thread, and return or raise what it does.

        If the recording has ended, it runs on the calling thread, because no other thread uses
        the recorder any more.
        """
        assert self._recorder is not None
        if self._thread is not None and self._thread.is_current:
            return function(self._recorder)
        task = _Task(function)
        with self._ending:
            ended = self._ended
            if not ended:
                self._tasks.put(task)
        if ended:
            return function(self._recorder)
        result: T = task.wait()
        return result

    def flush(self) -> None:
        """Deliver everything recorded so far to ``consume``. Raises MsptiError.

        Does nothing if it isn't recording.
        """
        if self.active:
            self.call(self._flush)

    def stop(self) -> None:
        """Stop collecting. Returns after everything recorded has been given to ``consume``."""
        atexit.unregister(self.stop)
        thread = self._thread
        if thread is None or self._pid != os.getpid():
            return
        self.call(self._stop)
        if not thread.is_current:
            thread.join()

    # --- the thread -------------------------------------------------------------------

    def _run(self, duration_s: float) -> None:
        """Carry out the tasks in the queue, of which the first is the start; flush regularly."""
        recorder = self._recorder
        assert recorder is not None
        self._tasks.get().run(recorder)
        end_s = time.monotonic() + duration_s if duration_s else math.inf
        next_flush_s = time.monotonic()
        while recorder.active:
            wait_s = min(end_s, next_flush_s) - time.monotonic()
            try:
                self._tasks.get(timeout=max(0.0, wait_s)).run(recorder)
            except Empty:
                is_over = time.monotonic() >= end_s
                next_flush_s = time.monotonic() + self.flush_interval_s
                self._on_schedule(self._stop if is_over else self._flush, recorder)
        with self._ending:
            self._ended = True
        while not self._tasks.empty():
            self._tasks.get().run(recorder)

    def _stop(self, recorder: Recorder) -> None:
        self._consume(recorder.stop())

    @staticmethod
    def _on_schedule(action: Callable[[Recorder], None], recorder: Recorder) -> None:
        try:
            action(recorder)
        except Exception as error:  # noqa: BLE001  boundary: callers wait for this thread
            text = str(error) if isinstance(error, MsmonError) else f"internal error: {error!r}"
            if text not in recorder.problems:
                recorder.problems.append(text)

    def _flush(self, recorder: Recorder) -> None:
        if recorder.active:
            recorder.flush()
            self._consume(recorder.drain())
