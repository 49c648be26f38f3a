"""Processes that are registered and not monitored: nothing can be said of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable

from msmon.bus.messages import Reply
from msmon.bus.rows import StatusRow
from msmon.bus.words import ProcessState
from msmon.commands.watch.sight import Changes
from msmon.errors import MsmonError
from msmon.insight.wording import ranks_text

LOOK_S = 30.0

SETTLED_LOOKS = 2
"""A process that starts, or has just been traced, is monitored by the next look."""

NOT_MONITORED = (ProcessState.IDLE, ProcessState.FAILED)

MONITOR_COMMAND = "msmon npu-monitor start --kind Kernel,Communication --report-interval-s 10"


class Registered:
    """Asks from time to time who is registered. Use it as a context manager.

    Its own thread asks and writes ``_latest``; the owner takes the news.
    """

    def __init__(self, ask: Callable[[], Reply], look_s: float = LOOK_S) -> None:
        self._ask = ask
        self._look_s = look_s
        self._changes = Changes(SETTLED_LOOKS)
        self._latest: dict[str, str] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch registered", daemon=True)

    def __enter__(self) -> Registered:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()  # an answer that is waited for is not waited for here

    def news(self) -> list[tuple[str, str]]:
        """Return (job, sentence) of what has changed since the last call."""
        latest, self._latest = self._latest, None
        if latest is None:
            return []
        return [
            (job, text or "all its registered processes are monitored")
            for job, text in self._changes.take(latest)
        ]

    def _run(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(MsmonError):  # the feed tells which daemon can't be asked
                self._latest = unmonitored(self._ask().status_rows)
            self._ended.wait(self._look_s)


def unmonitored(rows: Iterable[StatusRow]) -> dict[str, str]:
    """Return job → a sentence on its processes that are not monitored, where there are any."""
    idle: dict[str, list[StatusRow]] = {}
    for row in rows:
        if row.state in NOT_MONITORED:
            idle.setdefault(row.job_id or f"host {row.host}", []).append(row)
    return {job: _sentence(of_job) for job, of_job in idle.items()}


def _sentence(rows: list[StatusRow]) -> str:
    ranks = [row.rank for row in rows if row.rank >= 0]
    who = f"rank {ranks_text(ranks)}" if ranks else "one process" if len(rows) == 1 else (
        f"{len(rows)} processes"
    )  # fmt: skip
    problem = next((row.problem for row in rows if row.problem), "")
    return f"not monitored: {who}" + (f" ({problem})" if problem else f"; {MONITOR_COMMAND}")
