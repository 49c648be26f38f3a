"""The account of a session: where every record has gone, in numbers that add up.

    1000 records recorded = 850 sent + 100 filtered out + 50 dropped (slots 30, uplink 20)
    sqlite: 800 written + 50 dropped (disk 50)

The agent makes the first part and the daemon, for each output of records, the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msmon.sessions import Counts, Drops, DropStage

_APART = {
    DropStage.EARLY: "{} older than the session left out",
    DropStage.MARKERS: "{} open ranges given up",
    DropStage.OPEN: "{} ranges still open",
    DropStage.WINDOWS: "{} missing in windows",
}
"""Stages that are no part of the sum: what they count is no record of the session, a range, or a
record that is in the export all the same."""


def recorded_account(counts: Counts, shipped: bool) -> str:
    """Return what became of the records in their process.

    ``shipped``: whether the records were to be sent, or their statistics alone. Then what is lost
    with a window is lost. Lost records that nobody counted are "an unknown number".
    """
    after = DropStage.UPLINK if shipped else DropStage.WINDOWS
    dropped = {
        stage: count
        for stage, count in counts.drops.items()
        if count != 0 and (stage == after or stage not in _APART)
    }
    received, kept = sum(counts.received.values()), sum(counts.kept.values())
    passed_on = kept - (dropped.get(after) or 0)
    recorded = received + sum(count or 0 for stage, count in dropped.items() if stage != after)
    parts = [f"{passed_on} {'sent' if shipped else 'in windows'}"]
    if received > kept:
        parts.append(f"{received - kept} filtered out")
    text = f"{recorded} records recorded = {_sum(parts, dropped)}"
    for stage, words in _APART.items():
        count = counts.drops.get(stage, 0)
        if count != 0 and stage != after:
            text += f"; {words.format('an unknown number' if count is None else count)}"
    return text


def sent(counts: Counts) -> int:
    """Return how many records a process that ships them has handed to its daemon."""
    return sum(counts.kept.values()) - (counts.drops.get(DropStage.UPLINK) or 0)


@dataclass(frozen=True)
class OutputAccount:
    """What one output has done with the records of one session."""

    name: str
    written: int = 0
    """Records that it holds durably, as far as this daemon has handed them over."""
    drops: Drops = field(default_factory=dict)
    continued: bool = False
    """Whether an earlier daemon had written a part of it."""


def written_account(account: OutputAccount, sent_records: int) -> str:
    """Return what became of the records that were sent, in one output."""
    dropped = {
        stage: count for stage, count in account.drops.items() if count != 0 and stage not in _APART
    }
    rest = sent_records - account.written - sum(count or 0 for count in dropped.values())
    parts = [f"{account.written} written"]
    if rest > 0:
        parts.append(f"{rest} " + ("written before" if account.continued else "not written yet"))
    return f"{account.name}: {_sum(parts, dropped)}"


def _sum(parts: list[str], dropped: Mapping[str, int | None]) -> str:
    known = {stage: count for stage, count in dropped.items() if count is not None}
    if known:
        stages = ", ".join(f"{stage} {count}" for stage, count in known.items())
        parts = [*parts, f"{sum(known.values())} dropped ({stages})"]
    text = " + ".join(parts)
    unknown = [str(stage) for stage, count in dropped.items() if count is None]
    return f"{text}, and an unknown number dropped ({', '.join(unknown)})" if unknown else text
