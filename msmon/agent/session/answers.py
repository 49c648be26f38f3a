"""Answers to commands that have begun, changed or ended a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msmon.accounts import recorded_account
from msmon.bus.messages import Answer
from msmon.records.kinds import format_kinds

if TYPE_CHECKING:
    from msmon.agent.session.session import MonitoringSession


def session_answer(session: MonitoringSession, text: str) -> Answer:
    """Return the answer, with the kinds that can't be recorded or that the filter drops.

    Where the filter drops all of them, the answer also says what to do.
    """
    kinds_by_reason: dict[str, list[str]] = {}
    for name, reason in session.unavailable_kinds.items():
        kinds_by_reason.setdefault(reason, []).append(name)
    for reason, names in kinds_by_reason.items():
        verb = "is" if len(names) == 1 else "are"
        text += f"; {','.join(names)} {verb} unavailable: {reason}"
    filtered = [kind for kind in session.recorded_kinds if not session.keeps(kind)]
    next_step = ""
    if filtered:
        text += f"; the filter keeps no record of kind {format_kinds(filtered)}"
    if filtered and len(filtered) == len(session.recorded_kinds):
        text += ", so nothing is kept"
        next_step = 'name the kinds of the filter with update --kind too, or lift it: --filter ""'
    return Answer(True, text, next_step, session.session_id)


def totals(session: MonitoringSession) -> str:
    """Return what became of the records of a session."""
    return recorded_account(session.counts(), session.settings.ship_records)
