"""One npu-monitor run in this process, from its start to its end.

It takes what the recorder yields, filters it, and hands windows and (where an export wants
them) records to the uplink. Everything here runs on the collector's thread.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msmon.agent.link.uplink import Uplink
from msmon.agent.losses import LossReports
from msmon.agent.pace import Pace
from msmon.agent.ranks.parallel_groups import GroupWatch
from msmon.agent.wall_clock import WallClock
from msmon.agent.window_series import WindowSeries
from msmon.errors import CommandRefused
from msmon.recording.calls import CALL_ERRORS
from msmon.recording.recorder import Recorder
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.records.record_filter import RecordFilter
from msmon.sessions import Counts, Drops, DropStage, Gap, MonitorSettings, SessionEnd, merged_drops

FLUSH_INTERVAL_S = 1.0
"""MSPTI delivers a partly filled buffer only when it is flushed, and on some starts no buffer
at all. So it is flushed this often, however long the report interval is."""

MANY_SLOTS_OUT = 3
"""MSPTI usually has one buffer that it fills and one full one that it is about to deliver. With
so many, deliveries don't keep up; it is flushed at once, before it has no free buffer left."""


class MonitoringSession:
    """A session from :meth:`start` to :meth:`stop` (or :meth:`abandon`), with ticks between.

    Written by the collector's thread only. ``step`` returns the current training step, -1 if it
    is unknown. The id is random, so that nobody can guess it: who knows it may go on with the
    session at the daemon.
    """

    def __init__(
        self,
        settings: MonitorSettings,
        recorder: Recorder,
        uplink: Uplink,
        step: Callable[[], int],
    ) -> None:
        self.session_id = secrets.token_hex(16)
        self.settings = settings
        self.unavailable_kinds: dict[str, str] = {}
        self.problem = ""
        self._recorder = recorder
        self._uplink = uplink
        self._step = step
        self._filter = RecordFilter(settings.active_filter)
        self._clock = WallClock()
        self._windows = WindowSeries(self._clock)
        self._received: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._ended = False
        self._pace = Pace()
        self._groups = GroupWatch()
        self._paused_s: float | None = None
        self.flushed_monotonic_s: float | None = None
        """When MSPTI last returned from a flush."""
        self._drops_before: Drops = {}
        """Records lost before the last pause. The recorder counts from 0 after each pause."""

    # --- life -------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to record.

        Raises CommandRefused when another recording runs in this process or none of
        the kinds can be enabled, and what :meth:`Recorder.start` raises.
        """
        self.unavailable_kinds = self._recorder.start(self.settings.active_kinds)
        if not self._recorder.enabled_kinds:
            self._recorder.stop()
            raise CommandRefused("no kind can be recorded", _reasons(self.unavailable_kinds))
        now_s = time.monotonic()
        self._windows.begin()
        self._next_flush_s = now_s + FLUSH_INTERVAL_S
        duration_s = self.settings.duration_s
        self._deadline_s = now_s + duration_s if duration_s else float("inf")
        self._losses = LossReports(self._recorder, self._report_gap, self._clock.at_ns, now_s)
        self._uplink.open(self.session_id, self.settings.with_kinds(), self._recorder.start_ns)

    @property
    def recorded_kinds(self) -> frozenset[ActivityKind]:
        """The kinds in force that MSPTI does record."""
        kinds = self.settings.active_kinds
        return frozenset(kind for kind in kinds if kind.name not in self.unavailable_kinds)

    def keeps(self, kind: ActivityKind) -> bool:
        """Whether the filter in force lets any record of a kind pass."""
        return self.settings.active_filter.keeps_kind(kind)

    @property
    def next_tick_s(self) -> float:
        """When :meth:`tick` is to be called next, on the monotonic clock."""
        next_s = time.monotonic() + self._pace.tick_s
        if self.paused:
            return min(next_s, self._deadline_s)
        return min(
            next_s,
            self._next_flush_s,
            self._window_end_s,
            self._deadline_s,
        )

    @property
    def due(self) -> bool:
        """Whether the duration that was asked for is over."""
        return time.monotonic() >= self._deadline_s

    def tick(self) -> None:
        """Take what MSPTI has recorded since the last call."""
        if self.paused:
            return
        now_s = time.monotonic()
        window_over = now_s >= self._window_end_s
        if window_over or now_s >= self._next_flush_s or self._many_slots_out:
            self._flush()
            self._next_flush_s = now_s + FLUSH_INTERVAL_S
        self._take(self._recorder.batches())
        if window_over:
            self._close_window()
        self._note_groups()

    def update(self, fields: Mapping[str, Any]) -> None:
        """Change the settings that ``fields`` mentions; all others stay.

        What was recorded until now still counts by the old settings. Raises UsageError, or
        CommandRefused when none of the new kinds can be enabled; then nothing has changed.
        """
        new = self.settings.updated(fields)
        old = self.settings
        if self.paused:  # kinds are enabled when it goes on
            self._filter = RecordFilter(new.active_filter)
            self._adopt(new)
            return
        self._recorder.change_kinds(self._recorder.enabled_kinds & new.active_kinds)
        self._flush()
        self._take(self._recorder.batches())
        unavailable = self._recorder.change_kinds(new.active_kinds)
        if not self._recorder.enabled_kinds:
            self.unavailable_kinds = self._recorder.change_kinds(old.active_kinds)
            raise CommandRefused(
                "no kind can be recorded, all stays as it is", _reasons(unavailable)
            )
        self.unavailable_kinds = unavailable
        if new.filter != old.filter:
            self._filter = RecordFilter(new.active_filter)
        if new.report_interval_s != old.report_interval_s:
            self._close_window()
        self._adopt(new)

    def _adopt(self, new: MonitorSettings) -> None:
        self.settings = new
        self._uplink.put_note(self.session_id, "settings", json.dumps(new.as_fields()))

    @property
    def paused(self) -> bool:
        """Whether the recording rests for a trace."""
        return self._paused_s is not None

    def pause(self) -> None:
        """Deliver all that was recorded and stop using MSPTI, so that a profiler can."""
        if self.paused:
            return
        self._take(self._recorder.ending())
        self._losses.report(time.monotonic(), at_end=True)
        self._close_window()
        self._drops_before = self._recorder_drops()
        self._paused_s = time.monotonic()

    def resume(self) -> None:
        """Go on after a pause with the settings in force; the outputs are told of the gap.

        Raises what :meth:`Recorder.start` raises; the session is still paused then.
        """
        if not self.paused:
            return
        self.unavailable_kinds = self._recorder.start(self.settings.active_kinds)
        self._report_pause()
        self._windows.begin()
        now_s = time.monotonic()
        self._next_flush_s = now_s + FLUSH_INTERVAL_S
        self._losses = LossReports(self._recorder, self._report_gap, self._clock.at_ns, now_s)

    def _report_pause(self) -> None:
        if self._paused_s is not None:
            start_ns, end_ns = map(self._clock.at_ns, (self._paused_s, time.monotonic()))
            self._report_gap(Gap(DropStage.PAUSED, start_ns, end_ns, None, "paused for a trace"))
            self._paused_s = None

    def stop(self, reason: str, at_exit: bool = False) -> None:
        """End the recording and queue all that it holds for the daemon.

        ``at_exit``: the process ends; see :meth:`Recorder.ending_with_process`.
        """
        self._note_groups(at_end=True)
        if self.paused:
            self._report_pause()
            self._close(reason)
            return
        recorder = self._recorder
        self._take(recorder.ending_with_process() if at_exit else recorder.ending())
        if self._recorder.problems:
            self.problem = self._recorder.problems[-1]
        self._losses.report(time.monotonic(), at_end=True)
        self._close_window()
        self._close(reason)

    def abandon(self) -> None:
        """End after an unforeseen failure. Records that were not read yet are lost."""
        self._recorder.abandon()
        self._close("failed")

    def _close(self, reason: str) -> None:
        self._ended = True
        end_ns = self._clock.at_ns(time.monotonic())
        self._uplink.close(self.session_id, SessionEnd(end_ns, reason, self.counts()))

    def counts(self) -> Counts:
        """Return the records so far, and the drops of every stage in this process."""
        drops = dict(self._drops_before if self.paused else self._recorder_drops())
        for stage, count in (
            (DropStage.MARKERS, self._windows.evicted_ranges),
            (DropStage.OPEN, self._windows.open_ranges if self._ended else 0),
            (DropStage.UPLINK, sum(self._uplink.dropped(self.session_id).values())),
        ):
            if count:
                drops[stage] = count
        return Counts(dict(self._received), dict(+self._kept), dict(+self._windows.untimed), drops)

    def _recorder_drops(self) -> Drops:
        return merged_drops(self._drops_before, self._recorder.lost)

    # --- records ----------------------------------------------------------------------

    @property
    def _many_slots_out(self) -> bool:
        return self._recorder.slots_out >= MANY_SLOTS_OUT

    def _flush(self) -> None:
        try:
            self._recorder.flush()
            self.flushed_monotonic_s = time.monotonic()
        except CALL_ERRORS as error:
            self.problem = str(error)

    def _take(self, batches: Iterable[Batch]) -> None:
        buffers_before = self._recorder.buffers_read
        for batch in batches:
            name = batch.kind.name
            self._received[name] += len(batch)
            kept = self._filter.apply(batch)
            self._windows.add(kept, received=len(batch))
            self._kept[name] += len(kept)
            if self.settings.ship_records and len(kept):
                self._uplink.put_records(self.session_id, kept)
        self._pace.note(self._recorder.buffers_read - buffers_before)
        self._losses.report(time.monotonic())

    def _report_gap(self, gap: Gap) -> None:
        self._uplink.put_gap(self.session_id, gap)

    # --- windows ----------------------------------------------------------------------

    @property
    def _window_end_s(self) -> float:
        return self._windows.end_s(self.settings.report_interval_s)

    def _close_window(self) -> None:
        self._uplink.put_window(self.session_id, self._windows.close(self._step()))
        jump_ns = self._clock.follow()
        if jump_ns:
            self._uplink.put_note(self.session_id, "clock_jump_ns", str(jump_ns))

    def _note_groups(self, at_end: bool = False) -> None:
        groups = self._groups.news(at_end)
        if groups:
            self._uplink.put_note(self.session_id, "parallel_group_info", groups)


def _reasons(unavailable: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in unavailable.items())
