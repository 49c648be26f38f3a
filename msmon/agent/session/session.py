"""One npu-monitor run in this process, from its start to its end.

It decides when MSPTI is flushed, when buffers are read, and when windows end. What is read goes to
the :class:`~msmon.agent.session.intake.Intake`. Everything here runs on the collector's thread.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from msmon.agent.link.uplink import Uplink
from msmon.agent.ranks.parallel_groups import GroupWatch
from msmon.agent.session.device_times import most_records
from msmon.agent.session.intake import Intake
from msmon.agent.session.losses import FailedBatches, LossReports
from msmon.agent.session.pace import Pace
from msmon.agent.session.patience import Patience
from msmon.agent.session.wall_clock import WallClock
from msmon.agent.session.window_details import DEVICE_KINDS
from msmon.agent.session.window_series import WindowSeries
from msmon.agent.steps.counter import StepCounter
from msmon.errors import CommandRefused
from msmon.recording.calls import CALL_ERRORS
from msmon.recording.recorder import Recorder
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.sessions import Counts, Drops, DropStage, Gap, MonitorSettings, SessionEnd, merged_drops

FLUSH_INTERVAL_S = 1.0
"""MSPTI delivers a partly filled buffer only when it is flushed, and on some starts no buffer
at all. So it is flushed this often, however long the report interval is."""

MANY_SLOTS_OUT = 3
"""MSPTI usually has one buffer that it fills and one full one that it is about to deliver. With
so many, deliveries don't keep up; it is flushed at once, before it has no free buffer left."""

ROOM_LIMIT_S = 3.0
"""How long a stop or an update may wait until the daemon has made room for full buffers."""

SHORT_ROOM_LIMIT_S = 0.3
"""The same at the end of the job, and before a trace for which the training may wait."""


class MonitoringSession:
    """A session from :meth:`start` to :meth:`stop` (or :meth:`abandon`), with ticks between.

    Written by the collector's thread only. The id is random, so that nobody can guess it: who knows
    it may go on with the session at the daemon.
    """

    def __init__(
        self,
        settings: MonitorSettings,
        recorder: Recorder,
        uplink: Uplink,
        steps: StepCounter,
    ) -> None:
        self.session_id = secrets.token_hex(16)
        self.settings = settings
        self.unavailable_kinds: dict[str, str] = {}
        self.problem = ""
        self._recorder = recorder
        self._uplink = uplink
        self._clock = WallClock()
        self._windows = WindowSeries(self.session_id, uplink, self._clock, steps)
        self._intake = Intake(
            self.session_id,
            settings.active_filter,
            settings.ship_records,
            uplink,
            self._windows,
            FailedBatches(self._report_gap, lambda: self._clock.at_ns(time.monotonic())),
        )
        self._patience = Patience(
            self._intake, recorder, uplink, lambda: self._losses.note_held_back()
        )
        self._final_counts: Counts | None = None
        self._pace = Pace()
        self._groups = GroupWatch()
        self._paused_s: float | None = None
        self.flushed_monotonic_s: float | None = None
        """When MSPTI last returned from a flush."""
        self._drops_before: Drops = {}
        """Records lost before the last pause. The recorder counts from 0 after each pause."""
        self._recorder_counts = True
        """Whether what the recorder has lost is not yet in ``_drops_before``."""

    # --- life -------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to record.

        Raises CommandRefused when another recording runs in this process or none of
        the kinds can be enabled, and what :meth:`Recorder.start` raises.
        """
        self._start_recorder()
        now_s = time.monotonic()
        self._windows.begin()
        self._next_flush_s = now_s + FLUSH_INTERVAL_S
        duration_s = self.settings.duration_s
        self._deadline_s = now_s + duration_s if duration_s else float("inf")
        self._losses = LossReports(self._recorder, self._report_gap, self._clock.at_ns, now_s)
        self._uplink.open(self.session_id, self.settings.with_kinds(), self._recorder.start_ns)
        self._look_at_devices()

    def _start_recorder(self) -> None:
        self.unavailable_kinds = self._recorder.start(self.settings.active_kinds)
        if not self._recorder.enabled_kinds:
            self._recorder.stop()
            raise CommandRefused("no kind can be recorded", _reasons(self.unavailable_kinds))

    @property
    def recorded_kinds(self) -> frozenset[ActivityKind]:
        """The kinds in force that MSPTI does record."""
        kinds = self.settings.active_kinds
        return frozenset(kind for kind in kinds if kind.name not in self.unavailable_kinds)

    def _look_at_devices(self) -> None:
        """Measure devices only where all kernels and collectives are recorded, without a filter."""
        whole = self.recorded_kinds >= DEVICE_KINDS and not self.settings.active_filter.needles
        records = most_records(self.settings.report_interval_s) if whole else 0
        self._windows.look_at_devices(records)

    def keeps(self, kind: ActivityKind) -> bool:
        """Whether the filter in force lets any record of a kind pass."""
        return self.settings.active_filter.keeps_kind(kind)

    @property
    def next_tick_s(self) -> float:
        """When :meth:`tick` is to be called next, on the monotonic clock."""
        next_s = time.monotonic() + self._pace.tick_s
        if self.paused:
            return min(next_s, self._deadline_s)
        return min(next_s, self._next_flush_s, self._window_end_s, self._deadline_s)

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
        many_slots_out = self._recorder.slots_out >= MANY_SLOTS_OUT
        if window_over or now_s >= self._next_flush_s or many_slots_out:
            self._flush()
            self._next_flush_s = now_s + FLUSH_INTERVAL_S
        self._patience.held_back = False
        self._take(self._recorder.batches(self._patience.may_take))
        self._windows.take_steps()
        if window_over:
            self._windows.close()
        else:
            self._windows.tell_so_far(self.settings.report_interval_s)
        self._note_groups()

    def update(self, fields: Mapping[str, Any]) -> None:
        """Change the settings that ``fields`` mentions; all others stay.

        What was recorded until now still counts by the old settings. Raises UsageError, or
        CommandRefused when none of the new kinds can be enabled; then nothing has changed.
        """
        new = self.settings.updated(fields)
        old = self.settings
        if self.paused:  # kinds are enabled when it goes on
            self._adopt(new)
            return
        self._recorder.change_kinds(self._recorder.enabled_kinds & new.active_kinds)
        self._flush()
        self._take(self._recorder.batches(self._patience.until_room(ROOM_LIMIT_S)))
        unavailable = self._recorder.change_kinds(new.active_kinds)
        if not self._recorder.enabled_kinds:
            self.unavailable_kinds = self._recorder.change_kinds(old.active_kinds)
            raise CommandRefused(
                "no kind can be recorded, all stays as it is", _reasons(unavailable)
            )
        self.unavailable_kinds = unavailable
        if new.report_interval_s != old.report_interval_s:
            self._windows.close()
        self._adopt(new)

    def _adopt(self, new: MonitorSettings) -> None:
        if new.filter != self.settings.filter:
            self._intake.change_filter(new.active_filter)
        self.settings = new
        self._look_at_devices()
        self._uplink.put_note(self.session_id, "settings", json.dumps(new.as_fields()))

    @property
    def paused(self) -> bool:
        """Whether the recording rests for a trace."""
        return self._paused_s is not None

    def pause(self) -> None:
        """Deliver all that was recorded and stop using MSPTI, so that a profiler can."""
        if self.paused:
            return
        self._take(self._recorder.ending(self._patience.until_room(SHORT_ROOM_LIMIT_S)))
        self._losses.report(time.monotonic(), at_end=True)
        self._windows.close()
        self._drops_before = merged_drops(self._drops_before, self._recorder.lost)
        self._recorder_counts = False
        self._paused_s = time.monotonic()

    def resume(self) -> None:
        """Go on after a pause with the settings in force; the outputs are told of the gap.

        Raises CommandRefused when none of the kinds can be enabled any more, and what
        :meth:`Recorder.start` raises; the session is still paused then.
        """
        if not self.paused:
            return
        self._start_recorder()
        self._recorder_counts = True
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
        ending = recorder.ending_with_process if at_exit else recorder.ending
        limit_s = SHORT_ROOM_LIMIT_S if at_exit else ROOM_LIMIT_S
        self._take(ending(self._patience.until_room(limit_s)))
        if self._recorder.problems:
            self.problem = self._recorder.problems[-1]
        self._losses.report(time.monotonic(), at_end=True)
        self._windows.close()
        self._close(reason)

    def abandon(self) -> None:
        """End after an unforeseen failure. Records that were not read yet are counted as lost."""
        try:
            if not self.paused:
                self._recorder.abandon()
                self._losses.report(time.monotonic(), at_end=True)
            self._windows.close()
        finally:
            self._close("failed")

    def _close(self, reason: str) -> None:
        final = self._final_counts = self._count(at_end=True)
        end_ns = self._clock.at_ns(time.monotonic())
        self._uplink.close(self.session_id, SessionEnd(end_ns, reason, final))

    def counts(self) -> Counts:
        """Return the records so far, and the drops of every stage in this process.

        Once the session has ended they stay as they are: the uplink then forgets what it dropped.
        """
        return self._final_counts or self._count(at_end=False)

    def _count(self, at_end: bool) -> Counts:
        lately = self._recorder.lost if self._recorder_counts else {}
        return self._intake.counts(merged_drops(self._drops_before, lately), at_end)

    # --- records ----------------------------------------------------------------------

    def _flush(self) -> None:
        try:
            self._recorder.flush()
            self.flushed_monotonic_s = time.monotonic()
        except CALL_ERRORS as error:
            self.problem = str(error)

    def _take(self, batches: Iterable[Batch]) -> None:
        buffers_before = self._recorder.buffers_read
        for batch in batches:
            self._intake.take(batch)
        self._pace.note(self._recorder.buffers_read - buffers_before, self._patience.held_back)
        self._losses.report(time.monotonic())
        self.problem = self._intake.failed.error or self._recorder.losses.error or self.problem

    def _report_gap(self, gap: Gap) -> None:
        self._uplink.put_gap(self.session_id, gap)

    @property
    def _window_end_s(self) -> float:
        return self._windows.end_s(self.settings.report_interval_s)

    def _note_groups(self, at_end: bool = False) -> None:
        groups = self._groups.news(at_end)
        if groups:
            self._uplink.put_note(self.session_id, "parallel_group_info", groups)


def _reasons(unavailable: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in unavailable.items())
