"""Calls to a sink by name and plain arguments, so that they can also cross a process border.

An outlet holds frames, not columns; they are decoded here, where the sink runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind
from msmon.records.windows import Window
from msmon.sessions import Gap, SessionEnd, SessionInfo
from msmon.sinks.base import SessionOutput, Sink


class SinkCalls(Protocol):
    """What an outlet needs of a sink. All methods raise what the sink raises.

    ``generation`` grows whenever the sink was started anew and has forgotten its
    open sessions.
    """

    generation: int

    def open_session(self, session: SessionInfo) -> SessionOutput: ...

    def write_records(self, session_id: str, seq: int, kind: int, payload: list[bytes]) -> None: ...

    def write_window(
        self, session_id: str, seq: int, fields: dict[str, Any], payload: list[bytes]
    ) -> None: ...

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None: ...

    def write_note(self, session_id: str, seq: int, key: str, value: str) -> None: ...

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None: ...

    def forget_session(self, session_id: str) -> None: ...

    def commit(self) -> Mapping[str, tuple[str, ...]] | None: ...

    def close(self) -> None: ...


class DirectCalls:
    """Calls to a sink in this process."""

    generation = 0

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.open_session = sink.open_session
        self.write_gap = sink.write_gap
        self.write_note = sink.write_note
        self.close_session = sink.close_session
        self.forget_session = sink.forget_session
        self.commit = sink.commit
        self.close = sink.close

    def write_records(self, session_id: str, seq: int, kind: int, payload: list[bytes]) -> None:
        """Decode one batch and write it. Raises ValueError for frames that don't fit."""
        records, strings = payload
        batch = Batch.from_frames(ActivityKind(kind), records, strings)
        self._sink.write_records(session_id, seq, batch)

    def write_window(
        self, session_id: str, seq: int, fields: dict[str, Any], payload: list[bytes]
    ) -> None:
        """Decode one window and write it. Raises ValueError for frames that don't fit."""
        operators, buckets, names = Window.columns_from_frames(*payload)
        window = Window(operators=operators, buckets=buckets, names=names, **fields)
        self._sink.write_window(session_id, seq, window)
