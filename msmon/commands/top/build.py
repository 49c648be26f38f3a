"""The windows and the states of processes that came, as the rows that are shown."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Optional

from msmon.bus.rows import StatusRow
from msmon.bus.words import GONE
from msmon.commands.top.job_times import FEWEST_WINDOWS, MOST_WINDOWS, JobTimes, next_times
from msmon.commands.top.model import (
    JobAbstained,
    JobRow,
    JobVerdict,
    Model,
    RankKey,
    RankRow,
    RankWindow,
)
from msmon.insight.verdict import Verdict
from msmon.live.seen import SeenRank, SeenWindow
from msmon.live.watcher import Watcher, job_of
from msmon.records.windows import Window

KEPT_S = 120.0
"""A process that no daemon knows any more is shown for so long after its last window."""

MOST_PROCESSES = 20_000

ENDED_SHOWN = 20


class ModelBuilder:
    """Judges the jobs and keeps the newest windows. Belongs to one thread.

    The models that it makes may be read by any: it never changes what it has handed out.
    """

    def __init__(self) -> None:
        self._watcher = Watcher()
        self._windows: dict[RankKey, RankWindow] = {}
        self._times: dict[str, JobTimes] = {}
        self._states: dict[RankKey, StatusRow] = {}

    def take(self, windows: Sequence[SeenWindow]) -> None:
        """Take what has come, in its order."""
        for seen in windows:
            self._keep(seen)
        at_once = max(1, len(self._windows) // 2)  # so that no window of a job is passed over
        for first in range(0, len(windows), at_once):
            self._judge(windows[first : first + at_once])

    def _judge(self, windows: Sequence[SeenWindow]) -> None:
        for _ in self._watcher.take(windows):
            pass
        for job, watch in self._watcher.jobs.items():
            before = self._times.get(job)
            if watch.latest is not None and (before is None or before.window is not watch.latest):
                self._times[job] = next_times(before, watch.latest)
        self._times = {job: self._times[job] for job in self._watcher.jobs if job in self._times}

    def take_states(self, rows: Iterable[StatusRow]) -> None:
        """Take the processes that the daemons know; those of before are forgotten."""
        self._states = {RankKey(row.host, row.pid): row for row in rows}

    def model(self, now_ns: int, problems: Sequence[str] = (), daemons: int = 0) -> Model:
        """Return all that is known now."""
        self._forget_gone(now_ns)
        found = [
            (job, verdict)
            for job, watch in self._watcher.jobs.items()
            for verdict in watch.judgement.verdicts
        ]
        blamed = _blamed(found)
        ranks: dict[str, list[RankRow]] = defaultdict(list)
        own = {job: times.own_work for job, times in self._times.items()}
        for key in {**self._windows, **self._states}:
            row = _rank_row(key, self._windows.get(key), self._states.get(key), own, now_ns)
            verdict = blamed.get((row.job, row.rank), "")
            ranks[row.job].append(dataclasses.replace(row, verdict=verdict) if verdict else row)
        in_order = {job: _without_followed(rows) for job, rows in sorted(ranks.items())}
        watches = [watch for job, watch in self._watcher.jobs.items() if job in in_order]
        ended = [JobVerdict(watch.job, verdict) for watch in watches for verdict in watch.ended]
        ended.sort(key=lambda one: -(one.verdict.until_ns or 0))
        return Model(
            now_ns,
            tuple(self._job_row(job, rows, found) for job, rows in in_order.items()),
            in_order,
            tuple(JobVerdict(job, verdict) for job, verdict in found if job in in_order),
            tuple(ended[:ENDED_SHOWN]),
            tuple(JobAbstained(watch.job, one) for watch in watches for one in watch.abstained),
            (*problems, *(f"{watch.job}: {text}" for watch in watches for text in watch.problems)),
            daemons,
            dict(self._times),
            dict(self._windows),
        )

    def _keep(self, seen: SeenWindow) -> None:
        key = RankKey(seen.process.host, seen.process.pid)
        self._windows[key] = _rank_window(seen, self._windows.pop(key, None))
        while len(self._windows) > MOST_PROCESSES:
            del self._windows[next(iter(self._windows))]

    def _forget_gone(self, now_ns: int) -> None:
        for key, one in list(self._windows.items()):
            length_ns = one.window.end_ns - one.window.start_ns
            silent_ns = now_ns - one.window.end_ns - length_ns
            if key not in self._states and silent_ns > KEPT_S * 1e9:
                del self._windows[key]

    def _job_row(
        self, job: str, rows: Sequence[RankRow], found: Iterable[tuple[str, Verdict]]
    ) -> JobRow:
        verdicts = [verdict for of, verdict in found if of == job]
        worlds = [self._windows[row.key].process.world_size
                  for row in rows if row.key in self._windows]  # fmt: skip
        worlds += [self._states[row.key].world_size for row in rows if row.key in self._states]
        running = [row for row in rows if row.state not in GONE]
        costs = [one.cost_percent for one in verdicts if one.cost_percent is not None]
        return JobRow(
            key=job,
            name=job,
            hosts=len({row.host for row in rows}),
            ranks=len(running),
            monitored=sum(row.age_s is not None for row in running),
            world_size=max(worlds, default=0) or None,
            step=max((row.step for row in rows if row.step is not None), default=None),
            step_ns=_median(row.step_ns for row in running),
            exposed=_median(row.exposed for row in running),
            idle=_median(row.idle for row in running),
            verdict=", ".join(dict.fromkeys(str(verdict.kind) for verdict in verdicts)),
            cost_percent=max(costs, default=None),
            age_s=min((row.age_s for row in rows if row.age_s is not None), default=None),
        )


def _rank_window(seen: SeenWindow, before: Optional[RankWindow]) -> RankWindow:
    window = seen.window
    step_times: tuple[float, ...] = ()
    if before is not None and before.process.start_time == seen.process.start_time:
        step_times = before.step_times_ns
    step_ns = None
    if window.steps and window.step_total_ns:
        step_ns = window.step_total_ns / window.steps
        step_times = (*step_times, step_ns)[-MOST_WINDOWS:]
    known = step_ns is not None and len(step_times) > FEWEST_WINDOWS
    past = step_times[-1] / median(step_times[:-1]) if known else None
    return RankWindow(
        seen.process, seen.session, window, step_times, step_ns, past, _shares(window)
    )


def _shares(window: Window) -> tuple[Optional[float], Optional[float], Optional[float]]:
    measured_ns = int(window.devices["measured_ns"].sum())
    if not measured_ns:
        return None, None, None
    busy_ns, exposed_ns, idle_ns = (
        int(window.devices[name].sum()) for name in ("busy_ns", "exposed_ns", "idle_ns")
    )
    return busy_ns / measured_ns, exposed_ns / measured_ns, idle_ns / measured_ns


def _rank_row(
    key: RankKey,
    last: Optional[RankWindow],
    state: Optional[StatusRow],
    own: Mapping[str, Mapping[int, float]],
    now_ns: int,
) -> RankRow:
    if last is not None:
        process = last.process
    else:
        assert state is not None
        process = SeenRank(
            state.host, state.pid, 0, state.job_id, state.rank, state.world_size, state.device
        )
    job = job_of(process)
    step = max(last.window.step if last else -1, state.step if state else -1)
    busy, exposed, idle = last.shares if last else (None, None, None)
    length_ns = last.window.end_ns - last.window.start_ns if last else None
    return RankRow(
        key=key,
        job=job,
        rank=_known(process.rank),
        host=process.host,
        pid=process.pid,
        device=_known(process.device),
        state=str(state.state) if state else "",
        step=_known(step),
        step_ns=last.step_ns if last else None,
        past=last.past if last else None,
        busy=busy,
        exposed=exposed,
        idle=idle,
        work=own.get(job, {}).get(process.rank) if last else None,
        age_s=max(0.0, (now_ns - last.window.end_ns) / 1e9) if last else None,
        window_s=length_ns / 1e9 if length_ns else None,
        verdict="",
    )


def _blamed(found: Iterable[tuple[str, Verdict]]) -> dict[tuple[str, Optional[int]], str]:
    """Return (job, rank) → the kinds of the verdicts that name it."""
    kinds: dict[tuple[str, Optional[int]], list[str]] = defaultdict(list)
    for job, verdict in found:
        for rank in verdict.ranks:
            kinds[job, rank].append(str(verdict.kind))
    return {of: ", ".join(dict.fromkeys(texts)) for of, texts in kinds.items()}


def _without_followed(rows: Iterable[RankRow]) -> tuple[RankRow, ...]:
    """Return rows in the order of ranks, without processes whose rank another one has taken."""
    in_order = sorted(rows, key=lambda row: (_number(row.rank), row.host, row.pid))
    running = {row.rank for row in in_order if row.state not in GONE and row.rank is not None}
    return tuple(row for row in in_order if row.state not in GONE or row.rank not in running)


def _number(rank: Optional[int]) -> int:
    return -1 if rank is None else rank


def _known(number: int) -> Optional[int]:
    return number if number >= 0 else None


def _median(values: Iterable[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return median(known) if known else None
