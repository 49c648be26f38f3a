"""The simulated device: records the job's steps as real time passes.

Step k lies at k times the step's length since the epoch, on every rank, so ranks that
started at different moments agree on step numbers and on when collectives end.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping

import numpy as np

from msmon.records.batch import Column
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.settings.simulation import SimulatedRank, SimulationOptions
from msmon.simulation.buffers import ActivityBuffers
from msmon.simulation.image import CStrings, StepImage
from msmon.simulation.ledger import Ledger
from msmon.simulation.step import step_records
from msmon.simulation.timeline import StepRecords, Timeline
from msmon.simulation.workload import VARIANTS, StepPlan

TICK_S = 0.04
MAX_BACKLOG_NS = 2_000_000_000
"""How far back steps are recorded late. A process that was suspended longer has a gap."""
STEP_NUMBERS = 1_000_000
"""Step numbers start again after so many, to stay readable."""


_Variant = tuple[int, bool]
"""Number of the variant of the step, and whether something is slow in it."""


class SimulatedDevice:
    """One device with its recording thread, which runs between :meth:`start` and :meth:`stop`."""

    def __init__(
        self,
        options: SimulationOptions,
        rank: SimulatedRank,
        process_id: int,
        buffers: ActivityBuffers,
        ledger: Ledger,
    ) -> None:
        self._options = options
        self._rank = rank
        self._process_id = process_id
        self._buffers = buffers
        self._ledger = ledger
        self._plan = StepPlan(options)
        self._strings = CStrings()
        self._lock = threading.Lock()
        self._kinds: frozenset[ActivityKind] = frozenset()
        self._disabled_domains: frozenset[str] = frozenset()
        self._pushed_ids: Mapping[int, int] = {}
        self._records: dict[_Variant, tuple[StepRecords, ...]] = {}
        self._images: dict[_Variant, StepImage] = {}
        self._stamped_step = -1
        self._faulty = True
        """Whether the step of that number is one in which something is slow."""
        self._first_step = time.time_ns() // options.step_ns
        self._anchor_ns = 0
        """Wall clock at the time 0 of the monotonic clock, as it was when recording began. A device
        has a clock of its own, which goes on when somebody sets that of the host."""
        self._recorded_until_ns = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start recording from now on. No kind is enabled yet."""
        self._anchor_ns = time.time_ns() - time.monotonic_ns()
        self._recorded_until_ns = self._now_ns()
        self._kinds = frozenset()
        self._images.clear()
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="simulated device", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop recording. What was not recorded until now never will be."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            thread.join()

    def _run(self) -> None:
        tick_s = min(TICK_S, self._options.step_ms / 1000)
        while not self._stopping.wait(tick_s):
            with self._lock:
                self._record_until_now()

    def enable(self, kind: ActivityKind) -> None:
        """Record a kind from now on; without effect before :meth:`start`."""
        self._change(kinds=self._kinds | {kind})

    def disable(self, kind: ActivityKind) -> None:
        """Record what the kind has up to now, then no more."""
        self._change(kinds=self._kinds - {kind})

    def switch_domain(self, name: str, enabled: bool) -> None:
        """Switch the markers of a domain from now on."""
        domains = self._disabled_domains
        self._change(disabled_domains=domains - {name} if enabled else domains | {name})

    def push_ids(self, pushed_ids: Mapping[int, int]) -> None:
        """Record these (external kind → id) with every new correlation id from now on."""
        with self._lock:
            self._record_until_now()
            self._pushed_ids = pushed_ids

    def _change(
        self,
        kinds: frozenset[ActivityKind] | None = None,
        disabled_domains: frozenset[str] | None = None,
    ) -> None:
        with self._lock:
            self._record_until_now()
            if kinds is not None and self._thread is not None:
                self._kinds = kinds
            if disabled_domains is not None:
                self._disabled_domains = disabled_domains
            self._images.clear()
            self._stamped_step = -1

    def _now_ns(self) -> int:
        return self._anchor_ns + time.monotonic_ns()

    def _record_until_now(self) -> None:
        if self._thread is None:
            return
        now_ns = self._now_ns()
        since_ns = max(self._recorded_until_ns, now_ns - MAX_BACKLOG_NS)
        self._recorded_until_ns = max(now_ns, self._recorded_until_ns)
        if not self._kinds:
            return
        step_ns = self._options.step_ns
        for step in range(since_ns // step_ns, now_ns // step_ns + 1):
            self._record_part(step, since_ns - step * step_ns, now_ns - step * step_ns)

    def _record_part(self, step: int, after_ns: int, until_ns: int) -> None:
        """Record what a step reports in (after, until], both counted from its origin."""
        image = self._image_of(step)
        first, last = np.searchsorted(image.report_ns, [after_ns, until_ns], side="right").tolist()
        recorded = self._buffers.append(image.data, image.offsets[first : last + 1])
        missed = last - first
        for part in recorded:
            rows = image.ledger_rows[first:last][part]
            self._ledger.add(rows, image.duration_ns[first:last][part])
            missed -= len(rows)
        self._ledger.dropped += missed
        if self._pushed_ids and ActivityKind.ExternalCorrelation in self._kinds:
            drawn = image.new_correlation_ids[first:last]
            self._record_external(drawn[drawn > 0] + np.uint64(self._correlation_base(step)))

    def _record_external(self, correlation_ids: Column) -> None:
        """Record one ExternalCorrelation per new correlation id and pushed kind."""
        kind = ActivityKind.ExternalCorrelation
        records = np.zeros((len(correlation_ids), len(self._pushed_ids)), dtype=DTYPES[kind])
        records["kind"] = kind
        records["external_kind"] = list(self._pushed_ids)
        records["external_id"] = list(self._pushed_ids.values())
        records["correlation_id"] = correlation_ids[:, np.newaxis]
        offsets = np.arange(records.size + 1) * records.itemsize
        recorded = self._buffers.append(records.reshape(-1).view(np.uint8), offsets)
        count = sum(part.stop - part.start for part in recorded)
        self._ledger.add_external_correlations(count)
        self._ledger.dropped += records.size - count

    def _image_of(self, step: int) -> StepImage:
        begins = step != self._stamped_step
        if begins and self._options.fault_file:
            self._faulty = os.path.exists(self._options.fault_file)
        variant = step % VARIANTS, self._faulty
        image = self._images.get(variant)
        if image is None:
            image = self._images[variant] = self._new_image(variant)
        if begins:
            self._stamped_step = step
            image.stamp(
                origin_ns=step * self._options.step_ns,
                correlation_base=self._correlation_base(step),
                marker_base=(step - self._first_step) * self._plan.ranges,
                step_name_address=self._strings.step_name_address(step % STEP_NUMBERS),
            )
        return image

    def _new_image(self, variant: _Variant) -> StepImage:
        if variant not in self._records:
            timeline = Timeline(
                self._plan, self._options, self._rank, variant[0], self._process_id, variant[1]
            )
            self._records[variant] = step_records(timeline)
        parts = [part for part in self._records[variant] if part.batch.kind in self._kinds]
        return StepImage(parts, self._disabled_domains, self._strings, self._ledger)

    def _correlation_base(self, step: int) -> int:
        return (step - self._first_step) * self._plan.correlation_ids
