"""Which processes a command is for, and why a wanted one is not among them.

The cost grows with processes plus numbers asked for, not with their product: a status that names
10,000 ranks of 10,000 processes must not hold up the daemon's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Union

from msmon.bus.messages import Selection
from msmon.bus.rows import MissingRow
from msmon.bus.words import GONE, Outcome, ProcessState
from msmon.daemon.access.identity import is_in_use
from msmon.daemon.process import Life, Process

NOT_REGISTERED_STEP = (
    "a job registers when it is started with `msmon run COMMAND` or calls msmon.init(); "
    "`msmon doctor` checks the rest"
)
MAX_MISSING_ROWS = 1000
"""Rows on what is missing; the text says how many more there are."""
_MAX_LISTED = 20
_MAX_RANKS_OF_HOST = 4096

MayProbe = Callable[[int], bool]
"""Whether the caller may learn if a pid that never registered exists on this host."""


@dataclass
class Selected:
    """``missing`` has a row for each wanted pid, rank or job that matched nothing.

    ``outcome``, ``text`` and ``next_step`` are those of the answer when ``processes`` is empty.
    """

    processes: list[Process]
    missing: list[MissingRow] = field(default_factory=list)
    outcome: Outcome = Outcome.OK
    text: str = ""
    next_step: str = ""


class Chooser:
    """One selection, made ready to be held against many processes."""

    def __init__(self, selection: Selection) -> None:
        self._pids = dict.fromkeys(selection.pids)
        self._ranks = dict.fromkeys(selection.ranks)
        self._jobs = dict.fromkeys(selection.job_ids)

    def matches(self, process: Process) -> bool:
        """Whether the selection names this process, dead or alive."""
        info = process.info
        return (
            (not self._pids or info.pid in self._pids)
            and (not self._ranks or next(self._ranks_of(process), None) is not None)
            and (not self._jobs or info.job_id in self._jobs)
        )

    def missing(
        self, known: Iterable[Process], host: str, now_s: float, may_probe: MayProbe
    ) -> Iterator[MissingRow]:
        """Yield a row for everything that is wanted and that no live process is."""
        pids, ranks, jobs = _Holders(), _Holders(), _Holders()
        for process in known:
            if process.info.pid in self._pids:
                pids.add(process.info.pid, process)
            if process.info.job_id in self._jobs:
                jobs.add(process.info.job_id, process)
            for rank in self._ranks_of(process):
                ranks.add(rank, process)
        for pid in self._pids:
            if not pids.is_live(pid):
                state, text = pids.fate(pid, now_s) or _never_seen(_why_pid(pid, host, may_probe))
                yield MissingRow(pid=pid, state=state, text=text)
        for rank in self._ranks:
            if not ranks.is_live(rank):
                state, text = ranks.fate(rank, now_s) or _never_seen(f"no rank {rank} is known")
                yield MissingRow(rank=rank, state=state, text=text)
        for job in self._jobs:
            if not jobs.is_live(job):
                state, text = jobs.fate(job, now_s) or _never_seen(f"no job {job!r} is known")
                yield MissingRow(job_id=job, state=state, text=text)

    def _ranks_of(self, process: Process) -> Iterator[int]:
        """Yield the wanted ranks that a process reaches; looks through the shorter of both."""
        reach = reached(process)
        if len(reach) <= len(self._ranks):
            return (rank for rank in reach if rank in self._ranks)
        return (rank for rank in self._ranks if rank in reach)


class _Holders:
    """Per wanted number or name: the live process that has it, else the last one that had it."""

    def __init__(self) -> None:
        self._last: dict[Union[int, str], Process] = {}

    def add(self, wanted: int | str, process: Process) -> None:
        known = self._last.get(wanted)
        if known is None or (
            not known.is_there and (process.is_there or process.gone_s > known.gone_s)
        ):
            self._last[wanted] = process

    def is_live(self, wanted: int | str) -> bool:
        return wanted in self._last and self._last[wanted].is_there

    def fate(self, wanted: int | str, now_s: float) -> tuple[ProcessState, str] | None:
        """Return what became of the last holder; None when there was none."""
        last = self._last.get(wanted)
        if last is None:
            return None
        how = "fell silent" if last.life is Life.LOST else "ended"
        text = f"{last.label} was registered and {how} {now_s - last.gone_s:.0f} s ago"
        return ProcessState(last.life.value), text


def select(
    selection: Selection,
    known: Iterable[Process],
    host: str,
    now_s: float,
    may_probe: MayProbe = lambda _: True,
) -> Selected:
    """Pick the live processes that ``selection`` is for, among all that are known."""
    everything = list(known)
    chooser = Chooser(selection)
    live = [process for process in everything if process.is_there]
    matching = [process for process in live if chooser.matches(process)]
    missing = list(chooser.missing(everything, host, now_s, may_probe))
    rows = missing[:MAX_MISSING_ROWS]
    if matching:
        return Selected(matching, rows)
    if not everything:
        text = _join("no process is registered", missing)
        return Selected([], rows, Outcome.NONE_REGISTERED, text, NOT_REGISTERED_STEP)
    if not live:
        gone = "; ".join(process.label for process in everything[:_MAX_LISTED])
        text = _join(f"every registered process has ended or was lost: {gone}", missing)
        return Selected([], rows, Outcome.LOST, text, NOT_REGISTERED_STEP)
    all_gone = missing and all(row.state in GONE for row in missing)
    outcome = Outcome.LOST if all_gone else Outcome.NONE_MATCHED
    text = _join("", missing) or "no process matches all of pid, rank and job at once"
    return Selected([], rows, outcome, text, _listing(live))


def reached(process: Process) -> range:
    """Return the ranks that a command to a process reaches.

    Its own, and for a carrier those of its launch on its host, which launchers number in a row.
    """
    info = process.info
    if process.carrier and 0 <= info.local_rank <= info.rank and info.local_world_size > 1:
        first = info.rank - info.local_rank
        return range(first, first + min(info.local_world_size, _MAX_RANKS_OF_HOST))
    return range(info.rank, info.rank + 1)


def ranks_meant(selection: Selection, process: Process) -> list[int]:
    """Return the ranks that a command is for, of all those that a carrier reaches; empty: all."""
    if selection.pids and process.info.rank >= 0:
        return [process.info.rank]
    return selection.ranks


def _never_seen(why: str) -> tuple[ProcessState, str]:
    return ProcessState.UNKNOWN, why


def _why_pid(pid: int, host: str, may_probe: MayProbe) -> str:
    if not may_probe(pid):
        return f"process {pid} never registered with this daemon"
    if is_in_use(pid):
        return f"process {pid} runs on {host} but never registered with this daemon"
    return f"no process {pid} exists on {host}"


def unknown_text(missing: list[MissingRow]) -> str:
    """Return a sentence on what was asked for and was never known; empty when all was."""
    return _join("", [row for row in missing if row.state is ProcessState.UNKNOWN])


def _join(start: str, missing: list[MissingRow]) -> str:
    texts = [row.text for row in missing[:_MAX_LISTED]]
    more = [f"{len(missing) - _MAX_LISTED} more"] if len(missing) > _MAX_LISTED else []
    return "; ".join(filter(None, [start, *texts, *more]))


def _listing(live: list[Process]) -> str:
    shown = [
        f"pid {process.info.pid} (rank {process.info.rank}"
        + (f", job {process.info.job_id}" if process.info.job_id else "")
        + ")"
        for process in live[:_MAX_LISTED]
    ]
    more = f" and {len(live) - _MAX_LISTED} more" if len(live) > _MAX_LISTED else ""
    never = "; " + NOT_REGISTERED_STEP
    return f"registered: {', '.join(shown)}{more}{never}"
