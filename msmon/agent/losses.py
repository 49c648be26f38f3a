"""Turns what a recorder loses into gap reports, one per second at most."""

from __future__ import annotations

from collections.abc import Callable

from msmon.recording.recorder import Recorder
from msmon.sessions import DropStage, Gap

_INTERVAL_S = 1.0

_REASONS = {
    DropStage.SLOTS: "no free buffer: records came faster than they were read",
    DropStage.DECODE: "bytes that are no known activity record",
}


class LossReports:
    """Reports the gaps of one session that arise before its records reach the uplink.

    Written by the collector's thread only. Times are given on the monotonic clock; ``wall_ns``
    turns them into ns since 1970.
    """

    def __init__(
        self,
        recorder: Recorder,
        report: Callable[[Gap], None],
        wall_ns: Callable[[float], int],
        start_s: float,
    ) -> None:
        self._recorder = recorder
        self._report = report
        self._wall_ns = wall_ns
        self._since_s = start_s
        self._reported_bytes = dict.fromkeys(_REASONS, 0)

    def report(self, now_s: float, at_end: bool = False) -> None:
        """Report what was lost since the last report, unless that was just now."""
        if now_s - self._since_s < _INTERVAL_S and not at_end:
            return
        start_ns, end_ns = self._wall_ns(self._since_s), self._wall_ns(now_s)
        for stage, lost_bytes in self._recorder.lost_bytes.items():
            lately = lost_bytes - self._reported_bytes[stage]
            if lately > 0:
                records = self._recorder.records_in(lately) if stage is DropStage.SLOTS else None
                self._report(Gap(stage, start_ns, end_ns, records, _REASONS[stage]))
                self._reported_bytes[stage] = lost_bytes
        self._since_s = now_s
