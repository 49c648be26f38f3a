"""The trace of the marked ranks: what is asked for, and the answer as lines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from msmon.bus.messages import Message, Reply, Selection, TraceRequest
from msmon.bus.words import TraceAction
from msmon.commands.asking.answers import HEADLINES, in_rank_order, process_name, sentence
from msmon.commands.top.model import Model, RankKey
from msmon.errors import MsmonError

STEPS = 2

MOST_LINES = 6


def trace_request(
    model: Model, marked: Iterable[tuple[str, RankKey]], directory: str, timeout_s: float
) -> TraceRequest:
    """Return the request for a trace of some processes of one job.

    They are named by pid and by rank, and by job where it has an id, so that a process of another
    host with the same pid is not meant.
    """
    jobs = {job for job, _ in marked}
    keys = {key for _, key in marked}
    rows = [row for job in jobs for row in model.ranks.get(job, ()) if row.key in keys]
    ranks = sorted({row.rank for row in rows if row.rank is not None})
    ids = {model.windows[key].process.job for key in keys if key in model.windows}
    return TraceRequest(
        TraceAction.START,
        {"iterations": STEPS, "log_file": directory},
        Selection(
            pids=sorted({key.pid for key in keys}),
            ranks=ranks if len(ranks) == len(keys) else [],
            job_ids=sorted(ids) if all(ids) else [],
        ),
        pause_monitor=True,
        timeout_s=timeout_s,
    )


def answer_lines(reply: Reply) -> tuple[str, ...]:
    """Return what became of it in each process, and what to do about it."""
    by_text: dict[str, list[str]] = {}
    for row in in_rank_order(reply.answer_rows):
        text = f"{'ok' if row.ok else 'failed'}{': ' if row.text else ''}{sentence(row.text)}"
        by_text.setdefault(text, []).append(process_name(row))
    lines = [
        f"{', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}: {text}"
        for text, names in by_text.items()
    ]
    told = reply.text or HEADLINES.get(reply.outcome, "")
    if told:
        lines.append(sentence("\n".join(part for part in (told, reply.next_step) if part)))
    more = len(lines) - MOST_LINES
    return (*lines[:MOST_LINES], f"and {more} more lines: msmon status -v") if more > 0 else (
        tuple(lines)
    )  # fmt: skip


class TraceAsker:
    """Asks for traces on a thread, so that the screen goes on. ``lines`` is what is new to tell.

    The main thread starts it and takes the lines; the asking thread adds them.
    """

    def __init__(self, request: Callable[[Message], Reply], told: Callable[[], None]) -> None:
        self._request = request
        self._told = told
        self._lines: list[tuple[str, ...]] = []

    def ask(self, request: TraceRequest) -> None:
        """Send a request; the answer comes later."""
        threading.Thread(
            target=self._ask, args=(request,), name="msmon-top-trace", daemon=True
        ).start()

    def take(self) -> tuple[str, ...]:
        """Return the lines of an answer that has come, if any."""
        return self._lines.pop(0) if self._lines else ()

    def _ask(self, request: TraceRequest) -> None:
        try:
            lines = answer_lines(self._request(request))
        except MsmonError as error:
            lines = tuple(sentence(part) for part in (error.message, error.next_step) if part)
        self._lines.append(lines)
        self._told()
