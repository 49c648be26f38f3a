"""nputrace: choose a common first step, have traces started or cancelled.

The ranks write the traces themselves, so they decide about the directory. A trace of several
ranks is of use only when all trace the same steps: when one has passed the first step already,
none of its job begins.

A job id is only a claim, and ranks without one have "". So a job is the ranks of one owner with
one job id. Another user who claims the same id neither moves the common step nor prevents a trace.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msmon.bus.messages import Answer, Selection, Status, TraceRequest
from msmon.bus.rows import AnswerRow
from msmon.bus.words import AgentAction, ProcessState, TraceAction
from msmon.daemon.access.authentication import Peer
from msmon.daemon.commands.command_base import Commands, Order
from msmon.daemon.process import Process
from msmon.daemon.rows import identity
from msmon.daemon.selection import ranks_meant
from msmon.errors import UsageError
from msmon.settings.trace_options import NEXT_STEP, check_trace

LEADS_S = (1.0, 3.0, 9.0)
"""How far ahead the common first step is chosen.

The next value is tried when a rank had passed the step before its command came. Example: at 0.1 s
per step the first step is 10 steps ahead, then 30, then 90.
"""
MIN_LEAD_STEPS = 2
SHORTEST_STEP_S = 0.0005
"""Paces are taken as no faster, so that a wrong estimate costs seconds at most."""

UNDO_LIMIT_S = 5.0
MAX_STEP = 1 << 53
"""Steps are taken as no greater. A rank may report 2^64 - 1, and no step after it can be sent."""

_Answers = dict[str, Answer]


class Tracing(Commands[TraceRequest]):
    """Carries out nputrace requests."""

    def candidates(self) -> list[Process]:
        """Leave out carriers beside agents: the trace would begin twice in their ranks."""
        return self.registry.for_traces()

    def chosen(self, matched: list[Process], request: TraceRequest) -> tuple[list[Process], str]:
        """Keep to the process limit; say whom it leaves out."""
        limit = request.process_limit or len(matched)
        return matched[:limit], _left_out_text(matched[limit:])

    async def checked(self, request: TraceRequest, peer: Peer) -> dict[str, Any]:
        """Return the checked fields. Raises UsageError."""
        if request.action not in list(TraceAction):
            raise UsageError(f"unknown nputrace action {request.action!r}")
        if request.process_limit < 0:
            raise UsageError("--process-limit must not be negative", "0 means all")
        if request.action == TraceAction.START:
            return check_trace(request.fields)
        if request.fields:
            raise UsageError(f"nputrace cancel takes no options, got {', '.join(request.fields)}")
        return {}

    async def ask(
        self, processes: Sequence[Process], order: Order[TraceRequest]
    ) -> list[AnswerRow]:
        """Start a trace per job, or cancel all."""
        answers = await self._answers(processes, order.request, order.fields, order.deadline_s)
        return [_row(process, answers[process.key], order.peer) for process in processes]

    async def _answers(
        self,
        processes: Sequence[Process],
        request: TraceRequest,
        fields: dict[str, Any],
        deadline_s: float,
    ) -> _Answers:
        """Return ``Process.key`` → answer."""
        if request.action == TraceAction.CANCEL:
            return await self._ask_all(processes, AgentAction.CANCEL_TRACE, {}, deadline_s)
        jobs: dict[tuple[str, str], list[Process]] = {}
        for process in processes:
            jobs.setdefault((process.peer.owner, process.info.job_id), []).append(process)
        answers: _Answers = {}
        for of_job in await asyncio.gather(
            *(self._start_job(ranks, request, fields, deadline_s) for ranks in jobs.values())
        ):
            answers |= of_job
        return answers

    async def _start_job(
        self,
        ranks: list[Process],
        request: TraceRequest,
        fields: dict[str, Any],
        deadline_s: float,
    ) -> _Answers:
        """Start one trace of the ranks of one owner's job, all with the same steps."""
        answers: _Answers = {}
        reports = {rank.key: _Report.of(rank) for rank in ranks}
        # the steps of ranks behind a carrier are unknown; their framework knows "next" itself
        common = fields["start_step"] == NEXT_STEP and not any(rank.carrier for rank in ranks)
        for lead_s in LEADS_S:
            first = (
                common_step(reports.values(), fields, lead_s) if common else fields["start_step"]
            )
            asked = {**fields, "start_step": first, "pause_monitor": request.pause_monitor}
            answers = await self._ask_all(
                ranks, AgentAction.START_TRACE, asked, deadline_s, request.selection
            )
            if not any(_has_passed(answer) for answer in answers.values()):
                return answers
            await self._undo(ranks, answers)
            reports = {key: report.after(answers[key]) for key, report in reports.items()}
            if not common or time.monotonic() >= deadline_s:
                break
        return _explained(ranks, answers)

    async def _undo(self, ranks: list[Process], answers: _Answers) -> None:
        """Cancel what has begun to wait in some ranks, because another has passed the step."""
        started = [rank for rank in ranks if answers[rank.key].ok]
        await self._ask_all(started, AgentAction.CANCEL_TRACE, {}, time.monotonic() + UNDO_LIMIT_S)

    async def _ask_all(
        self,
        processes: Sequence[Process],
        action: AgentAction,
        fields: dict[str, Any],
        deadline_s: float,
        selection: Selection | None = None,
    ) -> _Answers:
        def meant(process: Process) -> list[int]:
            return ranks_meant(selection, process) if selection and process.carrier else []

        answers = await asyncio.gather(
            *(
                self.commander.ask(process, action, fields, deadline_s, ranks=meant(process))
                for process in processes
            )
        )
        return {process.key: answer for process, answer in zip(processes, answers)}


@dataclass(frozen=True)
class _Report:
    """The step that a rank last reported, when (monotonic), and its pace (0: unknown)."""

    step: int
    at_s: float
    step_s: float

    @classmethod
    def of(cls, rank: Process) -> _Report:
        status = rank.status or Status(ProcessState.UNKNOWN)
        pace_s = status.trace.step_s if status.trace else 0.0
        known = 0 < pace_s < math.inf  # False for a NaN as well
        return cls(_sane_step(status.step), rank.last_seen_s, pace_s if known else 0.0)

    def after(self, answer: Answer | None) -> _Report:
        """Return the newer report that an answer is."""
        now_s = time.monotonic()
        if answer is None or _sane_step(answer.step) <= self.step:
            return self
        step = _sane_step(answer.step)
        pace_s = (now_s - self.at_s) / (step - self.step)
        return _Report(step, now_s, self.step_s or pace_s)

    def expected_step(self, lead_s: float) -> int:
        """Return a step that the rank should not reach within ``lead_s``.

        Example: step 100 was reported 1 s ago, a step takes 0.5 s and the lead is 3 s. Then it
        returns 108, the step that is expected at the end of the lead.
        """
        ahead_s = time.monotonic() - self.at_s + lead_s
        ahead = math.ceil(ahead_s / max(self.step_s, SHORTEST_STEP_S)) if self.step_s else 0
        return self.step + max(MIN_LEAD_STEPS, ahead)


def _sane_step(step: int) -> int:
    return min(max(step, 0), MAX_STEP)


def common_step(reports: Iterable[_Report], fields: dict[str, Any], lead_s: float) -> int:
    """Return a first step that every rank should reach no sooner than in ``lead_s``.

    Where the trace must not start before some moment, it is the step expected then.
    """
    lead_s = max(lead_s, fields["start_time_ms"] / 1000 - time.time() + lead_s)
    return max(report.expected_step(lead_s) for report in reports) + int(fields["warmup"])


def _has_passed(answer: Answer) -> bool:
    """Whether a rank refused because its current step, which it tells, is too far on."""
    return not answer.ok and answer.step >= 0


def _explained(ranks: list[Process], answers: _Answers) -> _Answers:
    """Return the answers after nothing was started, because some rank has passed the step."""
    late = next(rank.info.rank for rank in ranks if _has_passed(answers[rank.key]))

    def explained(answer: Answer) -> Answer:
        if not answer.ok:
            return answer
        text = f"not started: rank {late} has passed this step; the current step is {answer.step}"
        return Answer(False, text, step=answer.step)

    return {key: explained(answer) for key, answer in answers.items()}


def _row(process: Process, answer: Answer, peer: Peer) -> AnswerRow:
    return AnswerRow(
        **identity(process, peer),
        ok=answer.ok,
        text=answer.text,
        next_step=answer.next_step,
        trace_id=answer.session_id,
        step=answer.step,
    )


def _left_out_text(processes: Sequence[Process]) -> str:
    if not processes:
        return ""
    ranks = ", ".join(str(process.info.rank) for process in processes[:20])
    more = f" and {len(processes) - 20} more" if len(processes) > 20 else ""
    return f"the process limit leaves out {len(processes)} that match: rank {ranks}{more}"
