"""One output with its bounded queue and its worker thread.

The broker only appends to the queue and never waits; the thread runs a SinkWorker,
whose sink may live in a process of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from msmon.daemon.outputs.calls import DirectCalls, SinkCalls
from msmon.daemon.outputs.process import ProcessCalls
from msmon.daemon.outputs.worker import SinkWorker, Task
from msmon.sessions import Drops, Gap, SessionInfo
from msmon.sinks.base import SessionOutput, Sink

QUEUE_BYTES = 128 << 20
BULK_METHODS = ("write_records", "write_window")

OpenDone = Callable[["SessionOutput | Exception"], None]
"""Called once, from the worker thread, with the answer to the opening of a session."""


class Outlet:
    """An output, its queue and its worker; methods may be called from any thread.

    ``on_commit(session_id, seq)`` and ``on_files(session_id, paths)`` are called from the
    worker thread, which starts with the first task. ``queue_bytes`` bounds everything not
    yet committed. Raises what the sink raises when it is made with these options.
    """

    def __init__(
        self,
        sink_class: type[Sink],
        options: Mapping[str, Any],
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        self.name = sink_class.NAME
        self.wants_records = sink_class.WANTS_RECORDS
        self.on_commit: Callable[[str, int], None] = lambda session_id, seq: None
        self.on_files: Callable[[str, tuple[str, ...]], None] = lambda session_id, paths: None
        self._wants_windows = sink_class.WANTS_WINDOWS
        self._options = sink_class.options_in_force(options, os.environ)
        self._calls: SinkCalls
        if sink_class.OWN_PROCESS:
            self._calls = ProcessCalls(sink_class, self._options)
        else:
            self._calls = DirectCalls(sink_class(**self._options))
        self._queue_bytes = queue_bytes
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[Task] = deque()
        self._held_bytes = 0
        self._opening: dict[str, OpenDone] = {}
        self._written: dict[str, int] = {}
        self._drops: dict[str, dict[str, int]] = {}
        self._gaps: dict[str, Gap] = {}
        self._problem = ""
        self._deadline_s: float | None = None
        self._thread: threading.Thread | None = None

    def open_session(self, session: SessionInfo, done: OpenDone) -> None:
        """Queue the opening of a session."""
        with self._changed:
            self._opening[session.session_id] = done
            self._append(Task("open_session", session.session_id, 1, (session,)))

    def put(self, task: Task) -> None:
        """Queue a task. A batch or window that does not fit is dropped and counted."""
        unwanted = (task.method == "write_records" and not self.wants_records) or (
            task.method == "write_window" and not self._wants_windows
        )
        with self._changed:
            full = self._held_bytes + task.size_bytes > self._queue_bytes
            if unwanted or (full and task.method in BULK_METHODS):
                if not unwanted:
                    self._count_drop(task, "sink", f"the queue of output {self.name} is full")
                task = Task("skip", task.session_id, task.seq, size_bytes=0)
            self._append(task)

    def drops(self, session_id: str) -> Drops:
        """Records of a session dropped in this output so far, per stage."""
        with self._changed:
            return dict(self._drops.get(session_id, {}))

    def forget(self, session_id: str) -> None:
        """Release the counts of a session that has ended."""
        with self._changed:
            self._drops.pop(session_id, None)
            self._gaps.pop(session_id, None)

    def status(self) -> dict[str, Any]:
        """Facts for ``status``; ``written`` and ``drops`` count records."""
        with self._changed:
            totals: dict[str, int] = {}
            for stages in self._drops.values():
                for stage, count in stages.items():
                    totals[stage] = totals.get(stage, 0) + count
            return {
                "name": self.name,
                "options": {key: str(value) for key, value in self._options.items()},
                "queue_bytes": self._held_bytes,
                "written": dict(self._written),
                "drops": totals,
                "problem": self._problem,
            }

    def close(self, timeout_s: float) -> None:
        """Write what is queued within the time-out; the rest is counted as dropped."""
        with self._changed:
            self._deadline_s = time.monotonic() + timeout_s
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _append(self, task: Task) -> None:
        """Queue a task; the lock is held. While the daemon ends it is left to the agent, which
        sends it again to the next one."""
        if self._deadline_s is not None:
            return
        self._queue.append(task)
        self._held_bytes += task.size_bytes
        if self._thread is None:
            name = f"sink-{self.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._changed.notify()

    def _count_drop(self, task: Task, stage: str, reason: str) -> None:
        """Count the records of a dropped batch and extend the session's gap; the lock is held."""
        if task.records is None:
            return
        kind, count = task.records
        stages = self._drops.setdefault(task.session_id, {})
        stages[stage] = stages.get(stage, 0) + count
        now_ns = time.time_ns()
        gap = self._gaps.get(task.session_id, Gap(stage, now_ns, now_ns, {}, reason))
        records = dict(gap.records or {})
        records[kind] = records.get(kind, 0) + count
        self._gaps[task.session_id] = Gap(gap.stage, gap.start_ns, now_ns, records, gap.reason)

    # --- the worker thread: its loop, and what the worker reports (worker.Report) ---

    def _run(self) -> None:
        worker = SinkWorker(self._calls, self, self._queue_bytes // 2)
        while True:
            with self._changed:
                if not self._queue and self._deadline_s is None:
                    self._changed.wait(worker.wait_s())
                task = self._queue.popleft() if self._queue else None
                ending = task is None and self._deadline_s is not None
            if task is not None:
                worker.take(task)
            worker.tick()
            if ending or (self._deadline_s is not None and time.monotonic() > self._deadline_s):
                break
        worker.finish(self._deadline_s or 0.0)
        with self._changed:
            while self._queue:
                self.dropped(self._queue.popleft(), "sink", "not written before the daemon ended")

    def opened(self, session_id: str, answer: SessionOutput | Exception) -> None:
        with self._changed:
            done = self._opening.pop(session_id, None)
        if done is not None:
            done(answer)

    def committed(self, session_id: str, seq: int, tasks: list[Task]) -> None:
        with self._changed:
            self._held_bytes -= sum(task.size_bytes for task in tasks)
            for task in tasks:
                if task.records is not None:
                    kind, count = task.records
                    self._written[kind] = self._written.get(kind, 0) + count
                if task.method == "close_session":
                    self._gaps.pop(session_id, None)
        self.on_commit(session_id, seq)

    def files(self, session_id: str, paths: tuple[str, ...]) -> None:
        self.on_files(session_id, paths)

    def handled(self, session_id: str, seq: int) -> None:
        self.on_commit(session_id, seq)

    def dropped(self, task: Task, stage: str, reason: str) -> None:
        with self._changed:
            self._held_bytes -= task.size_bytes
            self._count_drop(task, stage, reason)

    def take_gap(self, session_id: str) -> Gap | None:
        with self._changed:
            return self._gaps.pop(session_id, None)

    def problem(self, text: str) -> None:
        with self._changed:
            self._problem = text
