"""Turns what a session loses before its records reach the uplink into gap reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msmon.recording.recorder import Recorder
from msmon.records.batch import Batch
from msmon.sessions import Drops, DropStage, Gap, merged_drops

_INTERVAL_S = 1.0

_NO_BUFFER = "no free buffer: records came faster than they were read"
_HELD_BACK = "no free buffer: the daemon was away or too slow, and full buffers waited for it"
_UNREADABLE = "bytes that are no known activity record"


class LossReports:
    """Reports the gaps of one session, one per second at most for each stage.

    From one start of the recorder to its end. Written by the collector's thread only. Times are
    given on the monotonic clock; ``wall_ns`` turns them into ns since 1970.
    """

    def __init__(
        self,
        recorder: Recorder,
        report: Callable[[Gap], None],
        wall_ns: Callable[[float], int],
        start_s: float,
    ) -> None:
        self._losses = recorder.losses
        self._report = report
        self._wall_ns = wall_ns
        self._since_s = start_s
        self._reported_bytes = {DropStage.SLOTS: 0, DropStage.DECODE: 0}
        self._reported_failed: Counter[str] = Counter()
        self._held_back = False

    def note_held_back(self) -> None:
        """Note that full buffers wait because the daemon takes nothing more at the moment."""
        self._held_back = True

    def report(self, now_s: float, at_end: bool = False) -> None:
        """Report what was lost since the last report, unless that was just now."""
        if now_s - self._since_s < _INTERVAL_S and not at_end:
            return
        span = self._wall_ns(self._since_s), self._wall_ns(now_s)
        for stage, lost_bytes in self._losses.size_bytes.items():
            lately = lost_bytes - self._reported_bytes[stage]
            if lately > 0:
                self._report_bytes(stage, span, lately)
                self._reported_bytes[stage] = lost_bytes
        failed = self._losses.failed - self._reported_failed
        if failed:
            reason = f"records that could not be read: {self._losses.error}"
            self._report(Gap(DropStage.DECODE, *span, dict(failed), reason))
            self._reported_failed.update(failed)
        self._since_s = now_s
        self._held_back = False

    def _report_bytes(self, stage: DropStage, span: tuple[int, int], lost_bytes: int) -> None:
        records, reason = None, self._losses.error or _UNREADABLE
        if stage is DropStage.SLOTS:
            records = self._losses.records_in(lost_bytes)
            reason = _HELD_BACK if self._held_back else _NO_BUFFER
        self._report(Gap(stage, *span, records, reason))


class FailedBatches:
    """Batches that an unforeseen error kept from being filtered, measured or sent.

    Such an error costs one batch and not the session. Written by the collector's thread only.
    """

    def __init__(self, report: Callable[[Gap], None], wall_ns: Callable[[], int]) -> None:
        self.drops: Drops = {}
        """Records per stage."""
        self.error = ""
        """The last of these errors."""
        self._report = report
        self._wall_ns = wall_ns

    def lose(self, stage: DropStage, batch: Batch, error: Exception) -> None:
        """Count the records of a batch, and report them as a gap."""
        self.error = f"internal error: {type(error).__name__}: {error}"
        self.drops = merged_drops(self.drops, {stage: len(batch)})
        now_ns = self._wall_ns()
        records = {batch.kind.name: len(batch)}
        self._report(Gap(stage, now_ns, now_ns, records, self.error))
