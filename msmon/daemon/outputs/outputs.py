"""All outputs of a daemon, as its broker sees them.

A session goes to every output that the daemon was started with, and to the export
that its settings ask for. What several record-taking outputs have in common as
committed is acknowledged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from msmon.daemon.outputs.outlet import Outlet
from msmon.daemon.outputs.worker import TASK_BYTES, Task
from msmon.errors import MsmonError, SinkError
from msmon.records.kinds import ActivityKind
from msmon.sessions import Drops, Gap, MonitorSettings, SessionEnd, SessionInfo
from msmon.sinks.base import SessionOutput
from msmon.sinks.catalog import EXPORT_SINKS, sink_class
from msmon.sinks.exports import resolve_export

REMEMBERED_SESSIONS = 1000
"""Ended sessions whose files and drops can still be asked for."""

SessionDone = Callable[["tuple[str, ...] | MsmonError"], None]
"""Gets the files of a session, or why its export could not be opened; called once."""


@dataclass
class _OpenSession:
    """What is known of one session across its outputs."""

    outlets: list[Outlet]
    files: dict[Outlet, tuple[str, ...]] = field(default_factory=dict)
    committed: dict[Outlet, int] = field(default_factory=dict)
    """Record-taking output → last committed sequence number."""
    awaited: set[Outlet] = field(default_factory=set)
    error: MsmonError | None = None


class Outputs:
    """Facade for the broker's loop. No method blocks, except ``close``.

    ``on_commit(session_id, seq)`` may be called from any thread, also from within ``put_*``:
    everything up to ``seq`` is safe and can be acknowledged.
    """

    def __init__(
        self,
        daemon_sinks: Sequence[Outlet],
        export_roots: Sequence[Path],
        on_commit: Callable[[str, int], None],
    ) -> None:
        self._outlets = list(daemon_sinks)
        self._exports: dict[str, Outlet] = {}
        self._export_roots = tuple(export_roots)
        self._on_commit = on_commit
        self._lock = threading.RLock()
        self._sessions: dict[str, _OpenSession] = {}
        self._ended: dict[str, _OpenSession] = {}
        for outlet in self._outlets:
            self._listen_to(outlet)
        for name in EXPORT_SINKS.values():
            with contextlib.suppress(SinkError):  # whoever asks for such an export is told
                sink_class(name)  # imports it now: later that would hold up the broker

    @property
    def wants_records(self) -> bool:
        """Whether an output of the daemon itself wants raw records of every session."""
        return any(outlet.wants_records for outlet in self._outlets)

    def allow_exports(self, roots: Sequence[Path]) -> None:
        """Replace the directories below which everybody may export, from the next start on."""
        self._export_roots = tuple(roots)

    def check_export(self, settings: MonitorSettings, caller_uid: int) -> MonitorSettings:
        """Resolve and check the export directory of a start command.

        Returns the settings with the absolute path and with ``ship_records`` as the outputs
        need it. Raises UsageError or SinkError, whose text is for the caller.
        """
        log_file = settings.log_file
        if log_file:
            log_file = str(resolve_export(log_file, caller_uid, self._export_roots))
        ship = bool(log_file) or self.wants_records
        return dataclasses.replace(settings, log_file=log_file, ship_records=ship)

    def open_session(self, session: SessionInfo, done: SessionDone) -> None:
        """Open a session in its outputs; again for one already open, after a reconnect."""
        outlets = list(self._outlets)
        export: Outlet | None = None
        if session.settings.log_file:
            export = self._export_outlet(EXPORT_SINKS[session.settings.export_type])
            outlets.append(export)
        state = _OpenSession(outlets, awaited=set(outlets))
        with self._lock:
            self._ended.pop(session.session_id, None)
            known = self._sessions.setdefault(session.session_id, state)
            if known is not state:
                known.awaited = state.awaited
            known.committed.update(
                {item: 0 for item in outlets if item.wants_records and known is state}
            )
        if not outlets:
            done(())
        for outlet in outlets:
            opened = partial(self._opened, session.session_id, outlet, outlet is export, done)
            outlet.open_session(session, opened)

    def put_records(
        self, session_id: str, seq: int, kind: int, count: int, payload: Sequence[bytes]
    ) -> None:
        """Hand over a batch: the frames of ``Batch.to_frames``."""
        size = TASK_BYTES + sum(map(len, payload))
        name = ActivityKind(kind).name
        self._put(
            Task("write_records", session_id, seq, (kind, list(payload)), size, (name, count))
        )

    def put_window(
        self, session_id: str, seq: int, header_fields: Mapping[str, Any], payload: Sequence[bytes]
    ) -> None:
        """Hand over a window: its plain fields and the frames of ``Window.to_frames``."""
        size = TASK_BYTES + sum(map(len, payload))
        arguments = (dict(header_fields), list(payload))
        self._put(Task("write_window", session_id, seq, arguments, size))

    def put_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        """Hand over a gap that was found before the daemon."""
        self._put(Task("write_gap", session_id, seq, (gap,)))

    def put_note(self, session_id: str, seq: int, key: str, value: str) -> None:
        """Hand over a fact about the session."""
        self._put(Task("write_note", session_id, seq, (key, value), TASK_BYTES + len(value)))

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        """End a session; its files are complete once ``seq`` is reported as committed."""
        self._put(Task("close_session", session_id, seq, (end,)))
        with self._lock:
            state = self._sessions.pop(session_id, None)
            if state is None:
                return
            self._ended[session_id] = state
            while len(self._ended) > REMEMBERED_SESSIONS:
                oldest = next(iter(self._ended))
                for outlet in self._ended.pop(oldest).outlets:
                    outlet.forget(oldest)

    def drops(self, session_id: str) -> Drops:
        """Records of a session that outputs dropped so far, summed per stage."""
        total: dict[str, int] = {}
        for outlet in self._known(session_id).outlets:
            for stage, count in outlet.drops(session_id).items():
                total[stage] = total.get(stage, 0) + (count or 0)
        return dict(total)

    def files(self, session_id: str) -> tuple[str, ...]:
        """Absolute paths of the files written for a session."""
        with self._lock:
            files = self._known(session_id).files
            return tuple(path for paths in files.values() for path in paths)

    def status(self) -> list[dict[str, Any]]:
        """One mapping per output: name, options, queue_bytes, written, drops, problem."""
        with self._lock:
            outlets = [*self._outlets, *self._exports.values()]
        return [outlet.status() for outlet in outlets]

    def close(self, timeout_s: float) -> None:
        """Write what is queued, within the time-out for all outputs together."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            outlets = [*self._outlets, *self._exports.values()]
        for outlet in outlets:
            outlet.close(max(0.0, deadline_s - time.monotonic()))

    def _export_outlet(self, name: str) -> Outlet:
        with self._lock:
            if name not in self._exports:
                outlet = Outlet(sink_class(name), {})
                self._listen_to(outlet)
                self._exports[name] = outlet
            return self._exports[name]

    def _listen_to(self, outlet: Outlet) -> None:
        outlet.on_commit = partial(self._committed, outlet)
        outlet.on_files = partial(self._files_changed, outlet)

    def _known(self, session_id: str) -> _OpenSession:
        with self._lock:
            known = self._sessions.get(session_id) or self._ended.get(session_id)
            return known or _OpenSession([])

    def _put(self, task: Task) -> None:
        with self._lock:
            state = self._sessions.get(task.session_id)
        if state is None:
            return
        for outlet in state.outlets:
            outlet.put(task)
        if not state.committed:
            self._on_commit(task.session_id, task.seq)

    def _opened(
        self,
        session_id: str,
        outlet: Outlet,
        is_export: bool,
        done: SessionDone,
        answer: SessionOutput | Exception,
    ) -> None:
        """Note the answer of one output; tell the broker when the last one has answered."""
        with self._lock:
            state = self._known(session_id)
            if isinstance(answer, SessionOutput):
                state.files[outlet] = answer.files
            elif is_export:
                state.error = answer if isinstance(answer, MsmonError) else SinkError(str(answer))
            state.awaited.discard(outlet)
            finished = not state.awaited
            result = state.error or self.files(session_id)
        if finished:
            done(result)

    def _files_changed(self, outlet: Outlet, session_id: str, paths: tuple[str, ...]) -> None:
        with self._lock:
            self._known(session_id).files[outlet] = paths

    def _committed(self, outlet: Outlet, session_id: str, seq: int) -> None:
        with self._lock:
            state = self._known(session_id)
            if outlet not in state.committed:
                return
            state.committed[outlet] = max(seq, state.committed[outlet])
            common = min(state.committed.values())
        self._on_commit(session_id, common)
