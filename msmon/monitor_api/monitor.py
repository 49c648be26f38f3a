"""The Monitor API: collect activity of this process into memory, read it, save it.

    from msmon import ActivityKind, Monitor

    with Monitor([ActivityKind.Kernel], filter="Kernel:MatMul") as monitor:
        train_some_steps()
    kernels = monitor.get_result()[ActivityKind.Kernel]
    monitor.save("kernels.xlsx")

No daemon is needed. npu-monitor and Monitor can't record in one process at a time.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Union

from msmon.errors import CommandRefused, SinkError, UsageError
from msmon.formats.workbook import WorkbookWriter
from msmon.monitor_api.results import ActivityRecords
from msmon.monitor_api.store import Store
from msmon.recording import holder
from msmon.recording.recording import Recording
from msmon.records.batch import Batch
from msmon.records.filter import Filter
from msmon.records.kinds import ActivityKind, format_kinds, kind_named
from msmon.records.markers import MarkerEvents
from msmon.sessions import Drops, DropStage, MonitorSettings, merged_drops
from msmon.settings.options import MONITOR_OPTION, check_fields
from msmon.threads import Lock

MAX_RECORDS = 10_000_000
"""Records kept unless told otherwise: 560 MB of kernels."""

MAX_PATH_LENGTH = 4096
_DIRECTORY_MODE = 0o750

Kinds = Iterable[Union[ActivityKind, str]]


class Monitor:
    """Collects activity records of this process. Methods may be called from any thread.

    ``kinds``: kinds or their names; without any, those that the filter names, else Marker.
    ``filter``: as ``--filter`` of npu-monitor. ``duration``: stop by itself after so many
    seconds (0: never). ``max_records``: keep no more than that; what comes later is dropped
    and counted. Raises UsageError for a wrong argument.

    As a context manager it starts if kinds or a filter were given, and stops at the end.
    """

    def __init__(
        self,
        kinds: Kinds | None = None,
        *,
        filter: str = "",
        duration: float = 0.0,
        max_records: int = MAX_RECORDS,
    ) -> None:
        self._settings = _settings(kinds, filter, duration)
        self._starts_by_itself = kinds is not None or bool(filter)
        self._max_records = _checked_limit(max_records)
        self._recording = Recording("the Monitor API", self._take)
        self._lock = Lock()
        self._store = Store(frozenset(), Filter.parse(""), 0)
        self._unavailable: dict[str, str] = {}

    def start(
        self,
        kinds: Kinds | None = None,
        *,
        filter: str | None = None,
        duration: float | None = None,
        max_records: int | None = None,
    ) -> None:
        """Begin to collect; results of an earlier run are forgotten.

        An argument that is left out has the constructor's value. One exception: who gives kinds
        or a filter here replaces both, also the one that is left out.

        Raises UsageError for a wrong argument; CommandRefused naming who records already
        or traces in this process, or when MSPTI refuses all kinds; LibraryUnavailable,
        NativeCodeUnavailable or MsptiError when MSPTI can't be used. Where only some
        kinds are refused, ``unavailable`` lists them.
        """
        settings, limit = self._settings, self._max_records
        if kinds is not None or filter is not None:
            settings = _settings(kinds, filter or "", settings.duration_s)
        if duration is not None:
            settings = dataclasses.replace(settings, **_checked({"duration_s": duration}))
        if max_records is not None:
            limit = _checked_limit(max_records)
        if self._recording.active:
            raise CommandRefused("this Monitor is already recording", "call stop() first")
        trace = holder.trace_holder()
        if trace:
            raise CommandRefused(
                f"{trace} holds this process",
                "wait for it, or end it with nputrace --cancel",
            )
        before = self._store
        self._store = Store(settings.active_kinds, settings.active_filter, limit)
        try:
            self._unavailable = self._recording.start(
                settings.active_kinds, duration_s=settings.duration_s
            )
        except BaseException:
            self._store = before
            raise
        if len(self._unavailable) == len(settings.active_kinds):
            self._recording.stop()
            self._store = before
            reasons = "; ".join(f"{name}: {why}" for name, why in self._unavailable.items())
            raise CommandRefused(f"MSPTI refuses every kind asked for: {reasons}")

    def stop(self) -> None:
        """Stop collecting; results stay. Does nothing when not recording."""
        self._recording.stop()

    def flush(self) -> None:
        """Bring in what was recorded so far, without waiting for the regular flush.

        Does nothing when not recording. Raises MsptiError.
        """
        self._recording.flush()

    @property
    def running(self) -> bool:
        """Whether it collects now."""
        return self._recording.active

    @property
    def unavailable(self) -> dict[str, str]:
        """Kind name → why MSPTI refused it at the last start."""
        return dict(self._unavailable)

    @property
    def dropped(self) -> dict[str, int]:
        """Kind name → records beyond ``max_records``."""
        with self._lock:
            return dict(self._store.dropped)

    @property
    def untimed(self) -> dict[str, int]:
        """Kind name → records kept whose start and end give no duration, as no wall clock says.

        They are in the results as MSPTI delivered them. A sheet leaves their duration empty.
        """
        with self._lock:
            return dict(self._store.untimed)

    @property
    def lost(self) -> Drops:
        """What was lost before it could be kept, per stage; None: unknown how much.

        Stage "markers" counts ranges given up before their end, because too many were open, and
        "early" records left out because they ended before the start.
        """
        store = self._store
        here: Drops = {DropStage.MARKERS: store.evicted_ranges, DropStage.DECODE: store.failed}
        return merged_drops(
            self._recording.lost, {stage: count for stage, count in here.items() if count}
        )

    @property
    def problems(self) -> tuple[str, ...]:
        """MSPTI calls that failed since the last start, and errors that cost records."""
        error = self._store.error
        return (*self._recording.problems, *([error] if error else ()))

    def get_result(self) -> dict[ActivityKind, ActivityRecords]:
        """Return what was collected so far, per started kind; also while running.

        Raises UsageError when nothing was ever started.
        """
        with self._lock:
            store = self._store
            if not store.kinds:
                raise UsageError("nothing was collected yet", "call start() first")
            return {kind: ActivityRecords(kind, store.tables[kind]) for kind in sorted(store.kinds)}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write what was collected so far as XLSX, a sheet per kind; return the file's path.

        ``.xlsx`` is appended where missing, folders are made, an existing file is replaced
        once the new one is complete. Raises UsageError for a bad path or when nothing was
        ever started, SinkError when the file can't be written; no file is left then.
        """
        results = self.get_result()
        target = _checked_path(path)
        with WorkbookWriter(target, results) as book:
            for records in results.values():
                for table in records.batches:
                    if isinstance(table, MarkerEvents):
                        book.write_markers(table)
                    else:
                        book.write(table)
        return target

    def __enter__(self) -> Monitor:
        if self._starts_by_itself:
            self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _take(self, batches: list[Batch]) -> None:
        store = self._store
        for batch in batches:
            table = store.prepare(batch)
            if table is not None:
                with self._lock:
                    store.keep(batch.kind, table)


def _settings(kinds: Kinds | None, filter_text: str, duration_s: float) -> MonitorSettings:
    named = {} if kinds is None else {"kinds": _names(kinds)}
    return MonitorSettings(**_checked({**named, "filter": filter_text, "duration_s": duration_s}))


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    return check_fields(MONITOR_OPTION, fields)


def _checked_limit(max_records: int) -> int:
    if isinstance(max_records, bool) or not isinstance(max_records, int) or max_records < 1:
        raise UsageError(f"max_records: {max_records!r} is not a positive whole number")
    return max_records


def _names(kinds: Kinds) -> str:
    if isinstance(kinds, str):
        return kinds
    try:
        return format_kinds(
            kind_named(kind) if isinstance(kind, str) else ActivityKind(kind) for kind in kinds
        )
    except (TypeError, ValueError):
        raise UsageError(f"{kinds!r} is no list of activity kinds") from None


def _checked_path(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f"{path!r} is no path for a file")
    if text.endswith("/") or os.path.isdir(text):
        raise SinkError(f"can't write {text}: it is a directory", "name a file")
    if not text.lower().endswith(".xlsx"):
        text += ".xlsx"
    target = Path(os.path.realpath(text))
    if len(str(target)) > MAX_PATH_LENGTH:
        raise UsageError(f"the path has more than {MAX_PATH_LENGTH} characters")
    try:
        os.makedirs(target.parent, mode=_DIRECTORY_MODE, exist_ok=True)
        writable = not target.exists() or os.access(target, os.W_OK)
        is_file = target.is_file() or not target.exists()
    except OSError as error:
        raise SinkError(f"can't write {target}: {error.strerror}") from error
    if not is_file:
        raise SinkError(f"can't write {target}: it is no regular file", "choose another name")
    if not writable:
        raise SinkError(f"can't write {target}: it is read-only", "choose another name")
    return target
