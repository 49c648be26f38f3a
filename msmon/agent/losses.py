"""Turns what a recorder loses into gap reports, one per second at most."""

from __future__ import annotations

from collections.abc import Callable

from msmon.agent.recorder import Recorder
from msmon.sessions import Gap

_INTERVAL_NS = 1_000_000_000

_REASONS = {
    "slots": "no free buffer: records came faster than they were read",
    "decode": "bytes that are no known activity record",
}


class LossReports:
    """Gaps of one session, before its records reach the uplink."""

    def __init__(self, recorder: Recorder, report: Callable[[Gap], None], start_ns: int) -> None:
        self._recorder = recorder
        self._report = report
        self._since_ns = start_ns
        self._reported_bytes = dict.fromkeys(_REASONS, 0)

    def report(self, now_ns: int, at_end: bool = False) -> None:
        """Report what was lost since the last report, unless that was just now."""
        if now_ns - self._since_ns < _INTERVAL_NS and not at_end:
            return
        for stage, lost_bytes in self._recorder.lost_bytes.items():
            lately = lost_bytes - self._reported_bytes[stage]
            if lately > 0:
                records = self._recorder.records_in(lately) if stage == "slots" else None
                self._report(Gap(stage, self._since_ns, now_ns, records, _REASONS[stage]))
                self._reported_bytes[stage] = lost_bytes
        self._since_ns = now_ns
