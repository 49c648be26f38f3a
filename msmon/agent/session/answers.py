"""Answers to commands that have begun, changed or ended a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msmon.bus.messages import Answer
from msmon.records.kinds import format_kinds
from msmon.sessions import Counts, DropStage, alarming_drops

if TYPE_CHECKING:
    from msmon.agent.session.session import MonitoringSession


def session_answer(session: MonitoringSession, text: str) -> Answer:
    """Return the answer, with the kinds that can't be recorded or that the filter drops."""
    kinds_by_reason: dict[str, list[str]] = {}
    for name, reason in session.unavailable_kinds.items():
        kinds_by_reason.setdefault(reason, []).append(name)
    for reason, names in kinds_by_reason.items():
        verb = "is" if len(names) == 1 else "are"
        text += f"; {','.join(names)} {verb} unavailable: {reason}"
    filtered = [kind for kind in session.recorded_kinds if not session.keeps(kind)]
    if filtered:
        text += f"; the filter keeps no record of kind {format_kinds(filtered)}"
    return Answer(True, text, "", session.session_id)


def totals(counts: Counts) -> str:
    """Return records received, kept and dropped; lost ones that nobody counted are "unknown".

    Ranges that were open at the end are told apart: a step is always under way somewhere.
    """
    drops = alarming_drops(counts.drops).values()
    known = sum(number for number in drops if number is not None)
    unknown = " and an unknown number" if None in drops else ""
    received, kept = sum(counts.received.values()), sum(counts.kept.values())
    text = f"{received} records received, {kept} kept, {known}{unknown} dropped"
    still_open = counts.drops.get(DropStage.OPEN)
    return f"{text}, {still_open} ranges still open" if still_open else text
