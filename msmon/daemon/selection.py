"""Which processes a command is for, and why a wanted one is not among them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from msmon.bus.messages import Selection
from msmon.daemon.registry import LIVE, LOST, Process

NOT_REGISTERED_STEP = (
    "a job registers when it is started with `msmon run COMMAND` or calls msmon.init(); "
    "`msmon doctor` checks the rest"
)
_MAX_LISTED = 20


@dataclass
class Selected:
    """``missing`` has one row for each wanted pid, rank or job that matched nothing.

    ``outcome``, ``text`` and ``next_step`` are those of the answer when ``processes``
    is empty.
    """

    processes: list[Process]
    missing: list[dict[str, Any]] = field(default_factory=list)
    outcome: str = "ok"
    text: str = ""
    next_step: str = ""


def select(selection: Selection, known: Iterable[Process], host: str, now_s: float) -> Selected:
    """Pick the live processes that ``selection`` is for, among all that are known."""
    everything = list(known)
    live = [process for process in everything if process.life == LIVE]
    matching = [process for process in live if matches(selection, process)]
    missing = _missing(selection, everything, host, now_s)
    if matching:
        return Selected(matching, missing)
    if not everything:
        return Selected(
            [],
            missing,
            "none-registered",
            _join("no process is registered", missing),
            NOT_REGISTERED_STEP,
        )
    return _none_matched(missing, live, everything)


def _none_matched(
    missing: list[dict[str, Any]], live: list[Process], everything: list[Process]
) -> Selected:
    if not live:
        gone = "; ".join(process.label for process in everything[:_MAX_LISTED])
        text = _join(f"every registered process has ended or was lost: {gone}", missing)
        return Selected([], missing, "lost", text, NOT_REGISTERED_STEP)
    all_gone = missing and all(row["state"] in ("lost", "ended") for row in missing)
    text = _join("", missing) or "no process matches all of pid, rank and job at once"
    return Selected([], missing, "lost" if all_gone else "none-matched", text, _listing(live))


def matches(selection: Selection, process: Process) -> bool:
    """Whether ``selection`` names this process, dead or alive."""
    info = process.info
    return (
        (not selection.pids or info.pid in selection.pids)
        and (not selection.ranks or any(rank in reached(process) for rank in selection.ranks))
        and (not selection.job_ids or info.job_id in selection.job_ids)
    )


def reached(process: Process) -> range:
    """Return the ranks that a command to a process reaches.

    Its own, and for a carrier those of its launch on its host, which launchers number in a row.
    """
    info = process.info
    if process.carrier and 0 <= info.local_rank <= info.rank and info.local_world_size > 1:
        first = info.rank - info.local_rank
        return range(first, first + info.local_world_size)
    return range(info.rank, info.rank + 1)


def ranks_meant(selection: Selection, process: Process) -> list[int]:
    """Return the ranks that a command is for, of all those that a carrier reaches; empty: all."""
    if selection.pids and process.info.rank >= 0:
        return [process.info.rank]
    return selection.ranks


def _missing(
    selection: Selection, everything: list[Process], host: str, now_s: float
) -> list[dict[str, Any]]:
    rows = []
    for pid in dict.fromkeys(selection.pids):
        holders = [process for process in everything if process.info.pid == pid]
        rows += _missing_row("pid", pid, holders, now_s, lambda pid: _why_pid(pid, host))
    for rank in dict.fromkeys(selection.ranks):
        holders = [process for process in everything if rank in reached(process)]
        rows += _missing_row("rank", rank, holders, now_s, lambda rank: f"no rank {rank} is known")
    for job in dict.fromkeys(selection.job_ids):
        holders = [process for process in everything if process.info.job_id == job]
        rows += _missing_row("job_id", job, holders, now_s, lambda job: f"no job {job!r} is known")
    return rows


def _missing_row(
    name: str, value: Any, holders: list[Process], now_s: float, why: Callable[[Any], str]
) -> list[dict[str, Any]]:
    if any(process.life == LIVE for process in holders):
        return []
    if not holders:
        return [{name: value, "ok": False, "state": "unknown", "text": why(value)}]
    last = max(holders, key=lambda process: process.gone_s)
    how = "fell silent" if last.life == LOST else "ended"
    text = f"{last.label} was registered and {how} {now_s - last.gone_s:.0f} s ago"
    return [{name: value, "ok": False, "state": last.life, "text": text}]


def _why_pid(pid: int, host: str) -> str:
    if _exists(pid):
        return f"process {pid} runs on {host} but never registered with this daemon"
    return f"no process {pid} exists on {host}"


def _exists(pid: int) -> bool:
    """Whether a pid is in use; works without /proc, and where it is restricted."""
    if pid < 1:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _join(start: str, missing: list[dict[str, Any]]) -> str:
    return "; ".join(filter(None, [start, *(row["text"] for row in missing)]))


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
